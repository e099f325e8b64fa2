"""The names of files in a run folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dst_analyze.run.config import SweepConfig
from dst_analyze.run.files.atomic_io import SUMS, broken, is_leftover
from dst_analyze.run.files.lock import LOCK, OWNER
from dst_analyze.run.files.safe_read import COMMIT, JSON_MOST, read_text
from dst_analyze.run.record import TrialKey

CONFIG, MANIFEST, LAYERS, TRIALS = "config.json", "manifest.json", "layers.csv", "trials"
GRAPH, GROUPS, INPUTS = "graph.json", "groups.csv", "inputs.json"
"""Optional files: a model may have no graph, and inputs that are no tensors."""
HEADER = (MANIFEST, CONFIG, LAYERS)
TABLE, TRIAL_TABLE, WIDTHS, REPORT = "table.csv", "trials.csv", "widths.csv", "report.html"
VERDICT, SUMMARY = "verdict.json", "summary.md"
PLAN, SLIM_SOURCE, SLIM_WEIGHTS = "plan.json", "slim_model.py", "slim_model.safetensors"
CHANGES, RATIOS = "changes.csv", "torch_pruning.json"
VERIFICATION, VERIFIED = "verification.json", "verified"
LADDER = "ladder.json"
LATENCY = "latency.json"
"""Of the models of a proof: apart from it, as it is never the same twice."""
SUGGESTION = (PLAN, SLIM_SOURCE, SLIM_WEIGHTS, CHANGES, RATIOS)
SLIM_PATCH, SLIM_CALL = "slim_model.patch", "slim_call.py"
"""The change of the user's own file, and the call of a library's own class: where they can be had."""
EXPORTS = "exports.json"
SLIM_ONNX, SLIM_PT2, SPARSE_WEIGHTS = "slim_model.onnx", "slim_model.pt2", "sparse_model.safetensors"
HUB, EXPLORER = "hub", "model_explorer"
"""Folders, with checksums of their own."""
EXPORTED = (EXPORTS, SLIM_ONNX, SLIM_PT2, SPARSE_WEIGHTS)
"""Files of other formats of the suggestion, written on request."""
REPORTED = (TABLE, TRIAL_TABLE, WIDTHS, VERDICT, SUMMARY)
"""Files that the report is written with, the same for the same run."""
OPTIONAL = (SLIM_PATCH, SLIM_CALL, *EXPORTED)
"""Files that belong to a suggestion, and that not every suggestion has."""
DERIVED = (*REPORTED, REPORT, *SUGGESTION, *OPTIONAL, VERIFICATION, LATENCY)
"""Files derived from the trials."""
WEIGHTS = (SLIM_WEIGHTS, SLIM_ONNX, SLIM_PT2, SPARSE_WEIGHTS)
"""Files as large as a model."""
OPTIONS, SCALARS, BASELINES = "run.toml", "tensorboard", "baselines.json"
"""Options of the command line, output of `--tensorboard`, results of `--baselines`."""
MADE = (*DERIVED, BASELINES, LADDER)
"""All files of a run beside its header and trials."""
RESULT, READINGS, STEPS, TIMING = "trial.json", "record.csv", "steps.csv", "timing.json"
MASKS = "masks.safetensors"
TRIAL_FILES = (RESULT, READINGS, STEPS)

_RUN_FILES = {
    CONFIG,
    MANIFEST,
    LAYERS,
    GRAPH,
    GROUPS,
    INPUTS,
    SUMS,
    TRIALS,
    *DERIVED,
    VERIFIED,
    LADDER,
    HUB,
    EXPLORER,
    OPTIONS,
    SCALARS,
    BASELINES,
    LOCK,
    OWNER,
    COMMIT,
}
_TRIAL_FILES = {RESULT, READINGS, STEPS, MASKS, TIMING, SUMS}

NAME_COLUMNS = ("layer", "parameter")
GROUP_COLUMNS = ("layer", "group")
LAYER_COLUMNS = ("layer", "kind", "parameter", "shape", "params", "macs", "macs_note", "output_shape", "rung", "op")


def default_path(name: str, config: SweepConfig) -> Path:
    """Return ``reports/<name>-<8 hex digits of the configuration>``, with unsafe characters replaced."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name).strip("-.")[:60]
    return Path("reports") / f"{safe or 'model'}-{config.digest[:8]}"


def trial_folder(run: Path, key: TrialKey) -> Path:
    """Return the folder of a trial."""
    return run / TRIALS / key.name


def is_run_folder(path: Path) -> bool:
    """Return True if a folder has a manifest of this tool, which may be damaged or newer."""
    try:
        return '"tool": "dst-analyze"' in read_text(path / MANIFEST, JSON_MOST)
    except (OSError, UnicodeDecodeError):
        return False


def was_run_folder(path: Path) -> bool:
    """Return whether a folder is a run's, as its manifest, the rest of its head or some whole trial says."""
    if is_run_folder(path) or not broken(path, HEADER, but=(MANIFEST, *MADE)):
        return True
    trials = path / TRIALS
    found = trials.iterdir() if trials.is_dir() and not trials.is_symlink() else ()
    return any(not trial.is_symlink() and not broken(trial, TRIAL_FILES) for trial in found)


def is_blank(path: Path) -> bool:
    """Return True if a folder is missing or holds only a lock and leftovers of a run that never started."""
    return not path.exists() or (
        path.is_dir() and all(entry.name in (LOCK, OWNER) or is_leftover(entry.name) for entry in path.iterdir())
    )


def foreign(run: Path) -> list[str]:
    """Return files in a run folder that no run has written."""
    return sorted(str(entry.relative_to(run)) for entry in _foreign(run) if not is_leftover(entry.name))


def foreign_in_trial(folder: Path) -> list[str]:
    """Return files in a trial's folder that no run has written."""
    return [entry.name for entry in folder.iterdir() if entry.name not in _TRIAL_FILES]


def _foreign(run: Path) -> Iterator[Path]:
    yield from (entry for entry in run.iterdir() if entry.name not in _RUN_FILES)
    trials = run / TRIALS
    for entry in trials.iterdir() if trials.is_dir() else ():
        if not entry.is_dir() or not entry.name.startswith(("dense,seed=", "alpha=", "control,alpha=", ".")):
            yield entry
        else:
            yield from (entry / name for name in foreign_in_trial(entry))
