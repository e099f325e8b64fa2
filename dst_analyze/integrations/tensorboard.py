"""TensorBoard output of a sweep (`--tensorboard`): scalars in the run folder, one TensorBoard run per trial."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dst_analyze.errors import OptionError
from dst_analyze.run.events import Emit, Event, SweepStarted, TrialFailed, TrialFinished, TrialStarted, TrialStep
from dst_analyze.run.files.paths import SCALARS
from dst_analyze.run.record import TrialKey


@contextmanager
def drawing() -> Iterator[Emit]:
    """Yield a listener that writes loss, score and remaining ratios as scalars; its files are closed at the end."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "tensorboard":
            raise
        raise OptionError(
            "TensorBoard is not installed", place="--tensorboard", hint="pip install 'dst-analyze[tensorboard]'"
        ) from None
    scalars = _Scalars(SummaryWriter)
    try:
        yield scalars
    finally:
        scalars.close()


class _Scalars:
    def __init__(self, writer: Any) -> None:
        self.writer = writer
        self.folder: Path | None = None
        self.open: dict[TrialKey, Any] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case SweepStarted(folder=folder):
                self.folder = Path(folder) / SCALARS
            case TrialStarted(trial=trial) if self.folder is not None:  # a study's first has no folder yet
                self.close(trial)  # a repeated trial overwrites the scalars of its first attempt
                self.open[trial] = self.writer(str(self.folder / trial.name), purge_step=0)
            case TrialStep(trial=trial) if trial in self.open:
                self._write(self.open[trial], event)
            case TrialFinished(trial=trial) | TrialFailed(trial=trial):
                self.close(trial)

    def _write(self, writer: Any, event: TrialStep) -> None:
        values = {"loss": event.loss, "score": event.score, "remaining": event.remaining}
        values |= {f"layers/{name}": share for name, share in (event.layers or {}).items()}
        for tag, value in values.items():
            if value is not None:
                writer.add_scalar(tag, value, event.step)

    def close(self, *trials: TrialKey) -> None:
        """Close the writers of the given trials, or all of them."""
        for trial in trials or tuple(self.open):
            if trial in self.open:
                self.open.pop(trial).close()
