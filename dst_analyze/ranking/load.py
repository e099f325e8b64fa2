"""Rankings of run folders and of CSV files of ratios."""

from __future__ import annotations

from pathlib import Path

from dst_analyze.errors import DataError
from dst_analyze.ranking.input.frame_input import read_frame
from dst_analyze.ranking.rank import rank_layers
from dst_analyze.ranking.result import Ranking
from dst_analyze.run.files.atomic_io import as_named
from dst_analyze.run.files.paths import GROUP_COLUMNS, GROUPS
from dst_analyze.run.files.safe_read import is_there
from dst_analyze.run.reader import read_csv, read_run
from dst_analyze.run.record import SweepRecord


def rank_run(record: SweepRecord) -> Ranking:
    """Return the ranking of a run, with groups of layers if the run folder has them."""
    path = record.folder / GROUPS
    groups = None
    if is_there(path):
        known = as_named(read_csv(path, GROUP_COLUMNS, numbers=()), GROUP_COLUMNS)
        groups = dict(zip(known["layer"], known["group"], strict=True))
    return rank_layers(record, groups=groups)


def ranking_of(path: Path) -> Ranking:
    """Return the ranking of a run folder, or of a CSV file with the columns layer, alpha, remaining, ..."""
    if path.is_dir():
        return rank_run(read_run(path))
    if not path.exists():
        raise DataError(
            "there is no such folder or file", place=str(path), hint="give a run folder, or a CSV file of ratios"
        )
    return rank_layers(read_frame(path))
