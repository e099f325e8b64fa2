"""Serialization of tasks for workers: tensors as shared memory, definitions of the user's files by name."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dst_analyze.errors import ModelError
from dst_analyze.model.copying import deep_copied
from dst_analyze.model.graph.packed_graph import PackedGraph
from dst_analyze.model.isolation import preserved_randomness
from dst_analyze.model.loading.load import LoadedModel, absolute, load_model
from dst_analyze.model.loading.module_finder import MADE_FROM_FILE
from dst_analyze.model.tracing.trace import Mode, NoGraph, TracedModel
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.events import Emit, Notice
from dst_analyze.sweep.engines.sending.code_bundle import local_path
from dst_analyze.sweep.planning.plan import Request
from dst_analyze.sweep.training.device import Device
from dst_analyze.sweep.training.trial import ModelSource, Task
from dst_analyze.sweep.training.warm_start import Warmed

UNSENDABLE = (pickle.PicklingError, AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError)
"""The errors that pickling raises for objects that cannot be sent."""


@dataclass(frozen=True)
class PickledTask:
    """A task to pickle, which unpickles to the task; torch moves its tensors into memory that workers share."""

    task: Task

    def __reduce__(self) -> tuple[object, ...]:
        traced = self.task.traced
        light = replace(traced, graph=replace(traced.graph, graph_module=None), mode_graphs=_picklable_graphs(traced))
        if isinstance(self.task.source.spec, str | Path):
            light = replace(light, model=None)  # type: ignore[arg-type]  # the worker rebuilds it from its file
        task = replace(self.task, traced=light, loss=None, recipe=replace(self.task.recipe, hook=None))
        # The user's file first: its import defines classes that the data may be of.
        return _restore_task, (_UserFile(self.task.source), task)


def _picklable_graphs(traced: TracedModel) -> Mapping[Mode, PackedGraph | NoGraph]:
    """Return the graphs that trials are trained as; none if one of them calls something that cannot be pickled."""
    try:
        pickle.dumps([graph.nodes for graph in traced.mode_graphs.values() if isinstance(graph, PackedGraph)])
    except UNSENDABLE:
        return {}
    return traced.mode_graphs


def copy_for_sending(task: Task) -> Task:
    """Return the task with copies of the caller's model and data, or as it is if they cannot be copied.

    Sending a tensor moves its storage into shared memory in place, which would invalidate numpy arrays of the caller
    that share it.
    """
    held = task.source, task.traced.model, task.train_data, task.test_data
    try:
        source, model, train, test = deep_copied(held)
    except Exception:  # sending it will probably fail too, which `TaskTransport` handles
        return task
    return replace(task, source=source, traced=replace(task.traced, model=model), train_data=train, test_data=test)


@dataclass(frozen=True)
class PickledRequest:
    """A request to pickle, which unpickles to a `ReplannedTask`: for data that cannot be sent."""

    request: Request
    task: Task

    def __reduce__(self) -> tuple[object, ...]:
        # Device and threads of the first plan, as the worker's machine may have others.
        return ReplannedTask, (
            replace(self.request, model=absolute(self.request.model)),
            self.task.device,
            self.task.threads,
            self.task.warm_up_threads,
            _layer_names(self.task),
            self.task.warmed,
            self.task.config,
        )


@dataclass(frozen=True)
class ReplannedTask:
    """A task sent without its data, to be planned again in the worker.

    It is not planned while it is unpickled: a bootstrapping process must not start DataLoader workers.
    """

    request: Request
    device: Device
    threads: int
    warm_up_threads: int
    layers: tuple[str, ...]
    warmed: Warmed
    config: SweepConfig

    def task(self) -> Task:
        """Return the task, planned again with the device, threads and weights of the first plan."""
        task = replace(self.request, model=local_path(self.request.model)).task()
        if other := set(self.layers).symmetric_difference(_layer_names(task)):
            raise ModelError(
                f"a worker process finds other layers to mask than the sweep: {', '.join(sorted(other)[:3])}",
                place="register_masked",
                hint="register layer types in the model's file or in a module it imports, so that workers have them",
            )
        return replace(
            task,
            device=self.device,
            threads=self.threads,
            warm_up_threads=self.warm_up_threads,
            warmed=self.warmed,
            config=self.config,
        )


class TaskTransport:
    """The form in which a task is sent: whole, else as a request to plan it again, else None (it cannot be sent)."""

    def __init__(self, task: Task, request: Request | None, emit: Emit, *, light: bool = False) -> None:
        self.task, self.request, self.emit = task, request, emit
        self.payload: PickledTask | PickledRequest | None = (
            PickledRequest(request, task) if light and request is not None else PickledTask(task)
        )

    @property
    def light(self) -> bool:
        """True if the task is sent without its data."""
        return isinstance(self.payload, PickledRequest)

    @property
    def can_fall_back(self) -> bool:
        """True if the task can be sent in a lighter form."""
        return isinstance(self.payload, PickledTask) and self.request is not None

    def fall_back(self, why: str) -> None:
        """Send the task in the next lighter form from now on, and emit a notice."""
        if isinstance(self.payload, PickledTask) and self.request is not None:
            self.payload = PickledRequest(self.request, self.task)
            self.emit(Notice(f"the data cannot be shared between processes ({why}): each worker loads its own"))
        else:
            self.payload = None
            self.emit(
                Notice(f"the model or its data cannot be sent to workers ({why}): one training at a time, right here")
            )


@dataclass(frozen=True)
class _UserFile:
    """A model source to pickle, which unpickles to the source and the loaded model."""

    source: ModelSource

    def __reduce__(self) -> tuple[object, ...]:
        return _load, (replace(self.source, spec=absolute(self.source.spec)), _user_modules())


def _user_modules() -> dict[str, str]:
    """Return the modules made from users' files: name → file; a file that was run twice has two names."""
    return {
        name: file
        for name, module in list(sys.modules.items())
        if name.startswith(MADE_FROM_FILE) and (file := getattr(module, "__file__", None))
    }


def _load(source: ModelSource, names: dict[str, str]) -> tuple[ModelSource, LoadedModel]:
    source = replace(source, spec=local_path(source.spec))
    with preserved_randomness():
        loaded = load_model(source.spec, model_args=source.args)
    own = {file: sys.modules[name] for name, file in _user_modules().items()}
    for name, file in names.items():
        if local_path(file) in own:
            sys.modules.setdefault(name, own[local_path(file)])  # the same file under its name in the sender
    return source, loaded


def _restore_task(found: tuple[ModelSource, LoadedModel], task: Task) -> Task:
    source, loaded = found
    traced = replace(task.traced, model=loaded.model)
    recipe = replace(task.recipe, hook=loaded.optimizer)
    return replace(task, source=source, traced=traced, loss=loaded.loss, recipe=recipe)


def _layer_names(task: Task) -> tuple[str, ...]:
    return tuple(layer.name for layer in task.traced.layers)
