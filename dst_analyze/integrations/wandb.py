"""A sweep in Weights & Biases (`--wandb PROJECT`): one run, with curves by trial, two tables and the report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dst_analyze.errors import OptionError
from dst_analyze.integrations.run_tables import curve_name, layer_table, step_values, trial_table
from dst_analyze.run.events import Emit, Event, ReportWritten, SweepFinished, SweepStarted, TrialStep
from dst_analyze.run.reader import read_header, read_run
from dst_analyze.run.record import TrialKey


@contextmanager
def log_to_wandb(project: str, **options: Any) -> Iterator[Emit]:
    """Yield a listener that logs a sweep to a project of Weights & Biases, closed at the end.

    Args:
        project: The project's name; ``WANDB_MODE``, ``WANDB_DIR`` and the like are followed.
        options: Keywords of ``wandb.init``.

    Example:
        >>> import dst_analyze as dst
        >>> from dst_analyze.integrations.wandb import log_to_wandb
        >>> with log_to_wandb("redundancy") as listener:  # doctest: +SKIP
        ...     dst.run_sweep("mymodel.py", listener=listener)
    """
    try:
        import wandb
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "wandb":
            raise
        raise OptionError(
            "Weights & Biases is not installed", place="--wandb", hint="pip install 'dst-analyze[wandb]'"
        ) from None
    run = _WandbRun(wandb, project, options)
    failed = True
    try:
        yield run
        failed = False
    finally:
        run.close(failed=failed)


class _WandbRun:
    def __init__(self, wandb: Any, project: str, options: dict[str, Any]) -> None:
        self.wandb, self.project, self.options = wandb, project, options
        self.run: Any = None
        self.axes: set[TrialKey] = set()

    def __call__(self, event: Event) -> None:
        match event:
            case SweepStarted(folder=folder) if self.run is None:
                config = read_header(Path(folder))[0].model_dump(mode="json")
                given = {"project": self.project, "name": Path(folder).name, "job_type": "dst-analyze", **self.options}
                self.run = self.wandb.init(config=config, **given)
            case TrialStep(trial=trial) if self.run is not None:
                self._log_step(trial, event)
            case SweepFinished(folder=folder) if self.run is not None:
                record = read_run(Path(folder))
                tables = {"trials": trial_table(record), "layers": layer_table(record)}
                self.run.log({name: self.wandb.Table(dataframe=_plain(table)) for name, table in tables.items()})
            case ReportWritten(report=report) if self.run is not None:
                artifact = self.wandb.Artifact(f"report-{self.run.id}", type="report")
                artifact.add_file(report)
                self.run.log_artifact(artifact)

    def _log_step(self, trial: TrialKey, event: TrialStep) -> None:
        """Log the curves of a trial over its own steps: trials run side by side, and a run has one step."""
        name = curve_name(trial)
        axis = f"{name}/step"
        if trial not in self.axes:
            self.axes.add(trial)
            self.run.define_metric(axis, hidden=True)
            self.run.define_metric(f"{name}/*", step_metric=axis)
        values = step_values(event)
        if values:
            self.run.log({axis: event.step, **{f"{name}/{kind}": value for kind, value in values.items()}})

    def close(self, *, failed: bool) -> None:
        """Finish the run."""
        if self.run is not None:
            self.run.finish(exit_code=int(failed))


def _plain(table: Any) -> Any:
    """Return a table whose missing values are None, which a table of Weights & Biases shows as missing."""
    return table.astype(object).where(table.notna(), None)
