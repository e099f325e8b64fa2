"""Reload the model of a run, or the whole task, from the model's code."""

from __future__ import annotations

import os
from pathlib import Path

from dst_analyze.errors import DstError, FolderError, ModelError, OptionError, at
from dst_analyze.model.inputs.infer import find_example_inputs
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.inputs.stand_in import stand_in_inputs
from dst_analyze.model.loading.load import LoadedModel, file_named
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.files.paths import CONFIG, INPUTS, MANIFEST
from dst_analyze.run.files.safe_read import is_there
from dst_analyze.run.header import refuse_difference
from dst_analyze.run.reader import read_json
from dst_analyze.run.record import ExampleInputs, SweepRecord
from dst_analyze.sweep.data.named_datasets import DEFAULT_ROOT
from dst_analyze.sweep.planning.description.fingerprint import changed_code, model_sha256, weights_sha256
from dst_analyze.sweep.planning.loop_plan import OWN_LOOP
from dst_analyze.sweep.planning.own_loop_plan import task_of
from dst_analyze.sweep.planning.plan import PlannedBefore, model_source, plan_sweep
from dst_analyze.sweep.planning.preflight import load_trainable
from dst_analyze.sweep.training.trial import Task, seeded


def reload_model(record: SweepRecord, *, data_root: Path | None = None, model: str | None = None) -> TracedModel:
    """Return the traced model of a run, without reading its data set.

    Data are read only for old runs that did not keep their inputs and whose model file has no example_inputs().
    ``model`` says where the model is that a run does not name.
    """
    if model is not None:
        return _given_model(record, model)[1]
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
                # The model does not accept random inputs, so its data have to be read.
    return reload_task(record, data_root=data_root).traced


def reload_task(record: SweepRecord, *, data_root: Path | None = None, model: str | None = None) -> Task:
    """Return the task of a run as it was planned; raise if its code has changed since.

    ``model`` is the model file of a study, whose ``fit`` and ``evaluate`` train and score.
    """
    if model is not None:
        return _study_task(record, model)
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
            f"this run was made from an object in memory ({config.model}), which only its program can rebuild",
            place=str(record.folder),
            hint="use suggest_widths, slim_model and verify_plan in that program; or, if its model is in a file, "
            "name that: --model mymodel.py",
        )
    changed = changed_code(record)
    if changed:
        raise FolderError(
            f"this folder holds another run; its code has changed since: {', '.join(changed)}",
            place=str(record.folder),
            hint="put it back as it was, or sweep anew with another --out; nothing of it has been run",
        )
    return config


def _given_model(record: SweepRecord, spec: str) -> tuple[LoadedModel, TracedModel]:
    """Return the model of a run that does not name it, from where the user says it is."""
    config = record.config
    if config.can_be_made_again:
        raise OptionError(f"this run names its model: {config.model}", place="--model", hint="leave --model out")
    with seeded(config.seeds[0]), at(spec):
        loaded = load_trainable(model_source(spec, {}, config))
        inputs = _kept_inputs(record, loaded)
        if inputs is None:
            raise ModelError("the run has kept no example inputs", hint="define example_inputs() in the model file")
        traced = trace_model(loaded.model, inputs, include=config.include, exclude=config.exclude)
        then = dict(zip(record.layers["layer"], record.layers["params"].astype(int), strict=True))
        now = {layer.name: layer.params for layer in traced.layers}
        if then != now:
            wrong = next(name for name in (*then, *now) if then.get(name) != now.get(name))
            raise ModelError(
                f"it is not the model of this run: {wrong} has {now.get(wrong, 'no')} weights, not "
                f"{then.get(wrong, 'any')}",
                hint=f"name the model that {record.folder} was made from",
            )
    return loaded, traced


def _study_task(record: SweepRecord, spec: str) -> Task:
    loaded, traced = _given_model(record, spec)
    if record.config.data != OWN_LOOP:
        raise OptionError(
            "this run was trained on data in memory, which only its program has",
            place="--model",
            hint="use verify_plan in that program",
        )
    if loaded.fit is None or loaded.evaluate is None:
        raise ModelError(
            "a study is proven by the loop that trained it, and this file has none",
            place=spec,
            hint="define fit(model) and evaluate(model) in it",
        )
    return task_of(model_source(spec, {}, record.config), traced, record.config, record.manifest, "other")


def why_untrusted(record: SweepRecord) -> str:
    """Return why a run's model should not be run unasked, with the paths of both; nothing if there is no reason."""
    if not record.config.model:
        return ""  # a study names no code, and `reload_task` and `reload_model` refuse it
    file, here = file_named(record.config.model), Path.cwd()
    owners = {path.stat().st_uid for path in (record.folder, record.folder / CONFIG, record.folder / MANIFEST)}
    if hasattr(os, "geteuid") and owners != {os.geteuid()}:
        return f"{record.folder} is another user's, and its model {file or record.config.model} would be run"
    if file is not None and not file.is_relative_to(here.resolve()):
        return f"the model of {record.folder} is {file}, outside the current directory, and would be run"
    return ""


def _kept_inputs(record: SweepRecord, loaded: LoadedModel) -> Inputs | None:
    if loaded.example_inputs is not None:
        return find_example_inputs(loaded)
    path = record.folder / INPUTS
    if not is_there(path):
        return None
    device = next((parameter.device for parameter in loaded.model.parameters()), "cpu")
    return stand_in_inputs(read_json(path, ExampleInputs).model_dump()).to(device)
