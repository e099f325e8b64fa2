"""What a run trained, made again from the model's own code: its model alone, or all that a training needs."""

from __future__ import annotations

from pathlib import Path

from dst_analyze.errors import DstError, OptionError, at
from dst_analyze.model.inputs.infer import find_example_inputs
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.inputs.stand_in import stand_in_inputs
from dst_analyze.model.loading.load import LoadedModel
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.paths import INPUTS
from dst_analyze.run.reader import read_json
from dst_analyze.run.record import ExampleInputs, SweepRecord
from dst_analyze.run.writer import refuse_difference
from dst_analyze.sweep.data.named_datasets import DEFAULT_ROOT
from dst_analyze.sweep.planning.fingerprint import model_sha256, weights_sha256
from dst_analyze.sweep.planning.plan import PlannedBefore, model_source, plan_sweep
from dst_analyze.sweep.planning.preflight import load_trainable
from dst_analyze.sweep.training.trial import Task, seeded


def reload_model(record: SweepRecord, *, data_root: Path | None = None) -> TracedModel:
    """The model of a run, traced: no data set is read, nothing is trained and nothing written.

    Only a run from before its inputs were kept, of a model file without example_inputs(), has to read its data.
    """
    config = _with_code(record)
    source = model_source(config.model, config.model_args, config)
    with seeded(config.seeds[0]), at(config.model):
        loaded = load_trainable(source)
        now = {
            "model_sha256": model_sha256(loaded, config.model),
            "weights_sha256": None if source.weights is None else weights_sha256(source.weights),
        }
        refuse_difference(record.folder, config.as_asked, config.as_asked.model_copy(update=now), "configuration")
        inputs = _kept_inputs(record, loaded)
        if inputs is not None:
            try:
                return trace_model(loaded.model, inputs, include=config.include, exclude=config.exclude)
            except DstError:
                if loaded.example_inputs is not None:
                    raise
                # A model that noise cannot be given to: its data will have to be read.
    return reload_task(record, data_root=data_root).traced


def reload_task(record: SweepRecord, *, data_root: Path | None = None) -> Task:
    """The task of a run, as it was planned then; refused if its code has changed since."""
    config, made = _with_code(record), record.manifest
    plan = plan_sweep(
        config.model,
        record.manifest.data.name or None,
        model_args=config.model_args,
        out=record.folder,
        data_root=data_root or DEFAULT_ROOT,
        before=PlannedBefore(config.factor, made.steps, made.clock, made.warm_up, made.unit, made.default_optimizer),
        **config.options,
    )
    return plan.task


def _with_code(record: SweepRecord) -> SweepConfig:
    config = record.config
    if not config.can_be_made_again:
        raise OptionError(
            f"this run was made from an object in memory ({config.model}), which only its program can make again",
            place=str(record.folder),
            hint="use suggest_widths, slim_model and verify_plan in that program",
        )
    return config


def _kept_inputs(record: SweepRecord, loaded: LoadedModel) -> Inputs | None:
    if loaded.example_inputs is not None:
        return find_example_inputs(loaded)
    path = record.folder / INPUTS
    if not path.exists():
        return None
    device = next((parameter.device for parameter in loaded.model.parameters()), "cpu")
    return stand_in_inputs(read_json(path, ExampleInputs).model_dump()).to(device)
