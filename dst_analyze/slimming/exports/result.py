"""What exporters take and return, and `exports.json`, the record of what was exported."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field
from torch import fx

from dst_analyze.errors import DstError
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.ranking.result import Ranking
from dst_analyze.run.config import Json, Number, Size
from dst_analyze.run.derived import is_whole
from dst_analyze.run.files.paths import EXPORTS
from dst_analyze.run.reader import read_json
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.sweep.training.trial import Task


class NotExportedError(DstError):
    """A model cannot be written in a format; the cause is one line."""


@dataclass(frozen=True)
class SlimResult:
    """All that an exporter may need.

    ``source`` and ``weights`` are the contents of slim_model.py and its safetensors; the source may be empty.
    ``record`` is the sweep, if there is one; ``task`` plans it again, which reads its data.
    """

    model: fx.GraphModule
    traced: TracedModel | None = None
    plan: SlimPlan | None = None
    source: bytes = b""
    weights: bytes = b""
    record: SweepRecord | None = None
    ranking: Ranking | None = None
    task: Callable[[], Task] | None = None


@dataclass(frozen=True)
class Exported:
    """What was written: files by name, and folders of files.

    ``difference`` is the largest one of an output, as a share of the largest output of the slim model.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    folders: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    difference: float | None = None
    batch_sizes: tuple[int, ...] = ()
    note: str = ""


Exporter = Callable[[SlimResult], Exported]


class Export(Json):
    """One format: its files with the largest difference of their outputs, or why it was not written."""

    format: str
    files: tuple[str, ...] = ()
    sha256: dict[str, str] = Field(default_factory=dict)
    difference: Number | None = None
    batch_sizes: tuple[Size, ...] = ()
    note: str = ""
    reason: str = ""  # why it was not written

    @property
    def words(self) -> str:
        """What was checked, or why the format was not written, for the terminal."""
        if self.reason:
            return f"not written: {self.reason}"
        checked = ""
        if self.difference is not None:
            sizes = " and ".join(map(str, self.batch_sizes))
            same = (
                f"outputs differ by at most {self.difference:.1g} of the largest" if self.difference else "same outputs"
            )
            checked = f"{same}, batch size{'s' if len(self.batch_sizes) > 1 else ''} {sizes}"
        return "; ".join(filter(None, (checked, self.note)))


class ExportsFile(Json):
    """The contents of exports.json; ``plan`` and ``weights`` say which slim model the files are of."""

    schema_version: Literal[1] = 1
    plan: str
    weights: str
    exports: tuple[Export, ...]

    def as_bytes(self) -> bytes:
        """Return the text of the file."""
        return f"{self.model_dump_json(indent=1)}\n".encode()


def read_exports(record: SweepRecord) -> ExportsFile | None:
    """Return the record of exports in a run folder; None if there is none that can be believed."""
    return read_json(record.folder / EXPORTS, ExportsFile) if is_whole(record, EXPORTS) else None


def run_exporter(name: str, exporter: Exporter, result: SlimResult) -> tuple[Export, Exported]:
    """Return what an exporter has written; where it cannot, the record says why and there are no files."""
    try:
        exported = exporter(result)
    except NotExportedError as error:
        return Export(format=name, reason=error.cause), Exported()
    contents = {
        **exported.files,
        **{f"{folder}/{file}": data for folder, files in exported.folders.items() for file, data in files.items()},
    }
    entry = Export(
        format=name,
        files=tuple(sorted(contents)),
        sha256={file: hashlib.sha256(data).hexdigest() for file, data in sorted(contents.items())},
        difference=exported.difference,
        batch_sizes=exported.batch_sizes,
        note=exported.note,
    )
    return entry, exported
