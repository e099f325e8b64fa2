"""A sweep in MLflow (`--mlflow URI`): one run, with curves by trial, two tables and the report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dst_analyze.errors import OptionError
from dst_analyze.integrations.run_tables import curve_name, layer_table, step_values, trial_table
from dst_analyze.run.events import Emit, Event, ReportWritten, SweepFinished, SweepStarted, TrialStep
from dst_analyze.run.reader import read_header, read_run

EXPERIMENT = "dst-analyze"
"""The experiment that runs go into, unless ``MLFLOW_EXPERIMENT_NAME`` names one."""


@contextmanager
def log_to_mlflow(uri: str, experiment: str | None = None) -> Iterator[Emit]:
    """Yield a listener that logs a sweep to an MLflow server or store, closed at the end.

    Args:
        uri: The tracking URI, such as ``http://localhost:5000``, ``sqlite:///mlflow.db`` or ``file:mlruns``.
        experiment: The experiment's name; made if it is not there.

    Example:
        >>> import dst_analyze as dst
        >>> from dst_analyze.integrations.mlflow import log_to_mlflow
        >>> with log_to_mlflow("http://localhost:5000") as listener:  # doctest: +SKIP
        ...     dst.run_sweep("mymodel.py", listener=listener)
    """
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "mlflow":
            raise
        raise OptionError(
            "MLflow is not installed", place="--mlflow", hint="pip install 'dst-analyze[mlflow]'"
        ) from None
    name = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    try:
        client = MlflowClient(tracking_uri=uri)
        known = client.get_experiment_by_name(name)
        number = client.create_experiment(name) if known is None else known.experiment_id
    except (MlflowException, ImportError) as error:
        cause = str(error).partition("\n")[0]
        raise OptionError(
            f"MLflow cannot use {uri}: {cause}",
            place="--mlflow",
            hint="a server or a folder (file:PATH) will do; a database needs the whole of it: pip install mlflow",
        ) from error
    run = _MlflowRun(client, number)
    failed = True
    try:
        yield run
        failed = False
    finally:
        run.close(failed=failed)


class _MlflowRun:
    def __init__(self, client: Any, experiment: str) -> None:
        self.client, self.experiment = client, experiment
        self.run: str | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case SweepStarted(folder=folder) if self.run is None:
                made = self.client.create_run(self.experiment, run_name=Path(folder).name, tags={"tool": EXPERIMENT})
                self.run = made.info.run_id
                config = read_header(Path(folder))[0].model_dump(mode="json")
                for name, value in config.items():
                    self.client.log_param(self.run, name, str(value)[:500])
            case TrialStep(trial=trial) if self.run is not None:
                for kind, value in step_values(event).items():
                    self.client.log_metric(self.run, f"{curve_name(trial)}/{kind}", value, step=event.step)
            case SweepFinished(folder=folder) if self.run is not None:
                record = read_run(Path(folder))
                self.client.log_table(self.run, trial_table(record), "trials.json")
                self.client.log_table(self.run, layer_table(record), "layers.json")
            case ReportWritten(report=report) if self.run is not None:
                self.client.log_artifact(self.run, report)

    def close(self, *, failed: bool) -> None:
        """End the run."""
        if self.run is not None:
            self.client.set_terminated(self.run, "FAILED" if failed else "FINISHED")
