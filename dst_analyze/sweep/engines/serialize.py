"""A task on its way to a worker: tensors travel as shared memory, what a user's file defines by its name."""

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
from dst_analyze.sweep.engines.code_bundle import local_path
from dst_analyze.sweep.planning.plan import Request
from dst_analyze.sweep.training.device import Device
from dst_analyze.sweep.training.trial import ModelSource, Task
from dst_analyze.sweep.training.warm_start import Warmed

UNSENDABLE = (pickle.PicklingError, AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError)
"""What pickling raises about objects that cannot travel."""


@dataclass(frozen=True)
class PickledTask:
    """Pickles into the task itself; torch moves its tensors into shared memory, where all workers see the same ones."""

    task: Task

    def __reduce__(self) -> tuple[object, ...]:
        traced = self.task.traced
        light = replace(traced, graph=replace(traced.graph, graph_module=None), mode_graphs=_sendable(traced))
        if isinstance(self.task.source.spec, str | Path):
            light = replace(light, model=None)  # type: ignore[arg-type]  # built anew from its file on arrival
        task = replace(self.task, traced=light, loss=None, recipe=replace(self.task.recipe, hook=None))
        # In this order: data may be of classes that exist only once the user's file has been imported.
        return _arrived, (_UserFile(self.task.source), task)


def _sendable(traced: TracedModel) -> Mapping[Mode, PackedGraph | NoGraph]:
    """The graphs that trials are trained as; none if one of them calls what cannot be pickled by name."""
    try:
        pickle.dumps([graph.nodes for graph in traced.mode_graphs.values() if isinstance(graph, PackedGraph)])
    except UNSENDABLE:
        return {}
    return traced.mode_graphs


def copy_for_sending(task: Task) -> Task:
    """The task with copies of what its caller holds.

    Sending a tensor moves its memory, in place, to where other processes see it: a numpy array that looks at the same
    memory, in somebody's notebook, would be left looking at nothing.
    """
    held = task.source, task.traced.model, task.train_data, task.test_data
    try:
        source, model, train, test = deep_copied(held)
    except Exception:  # what cannot be copied can hardly be sent, which is dealt with where it is tried
        return task
    return replace(task, source=source, traced=replace(task.traced, model=model), train_data=train, test_data=test)


@dataclass(frozen=True)
class PickledRequest:
    """Pickles into a task to be planned anew, its data loaded once more: for data that cannot travel."""

    request: Request
    task: Task

    def __reduce__(self) -> tuple[object, ...]:
        # Where it arrives there may be other cores and devices: the first plan has decided about them.
        return ReplannedTask, (
            replace(self.request, model=absolute(self.request.model)),
            self.task.device,
            self.task.threads,
            _layer_names(self.task),
            self.task.warmed,
            self.task.config,
        )


@dataclass(frozen=True)
class ReplannedTask:
    """A task that has arrived without its data. Not planned while it is read: a process that is still being made must
    start no others, as a user's loader may."""

    request: Request
    device: Device
    threads: int
    layers: tuple[str, ...]
    warmed: Warmed
    config: SweepConfig

    def task(self) -> Task:
        task = replace(self.request, model=local_path(self.request.model)).task()
        if other := set(self.layers).symmetric_difference(_layer_names(task)):
            raise ModelError(
                f"a worker process finds other layers to mask than the sweep: {', '.join(sorted(other)[:3])}",
                place="register_masked",
                hint="register layer types in the model's file or in a module it imports, where workers see it too",
            )
        return replace(task, device=self.device, threads=self.threads, warmed=self.warmed, config=self.config)


class TaskTransport:
    """How a task travels: whole, else as a request to plan it anew, else (``payload`` is None) not at all."""

    def __init__(self, task: Task, request: Request | None, emit: Emit, *, light: bool = False) -> None:
        self.task, self.request, self.emit = task, request, emit
        self.payload: PickledTask | PickledRequest | None = (
            PickledRequest(request, task) if light and request is not None else PickledTask(task)
        )

    @property
    def light(self) -> bool:
        return isinstance(self.payload, PickledRequest)

    @property
    def can_fall_back(self) -> bool:
        return isinstance(self.payload, PickledTask) and self.request is not None

    def fall_back(self, why: str) -> None:
        """Send less from now on, and say so."""
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
    """Pickles into the loaded model."""

    source: ModelSource

    def __reduce__(self) -> tuple[object, ...]:
        return _load, (replace(self.source, spec=absolute(self.source.spec)), _user_modules())


def _user_modules() -> dict[str, str]:
    """Modules made from users' files: name → file. A file run twice stands there twice."""
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
            sys.modules.setdefault(name, own[local_path(file)])  # of the second run, or of another path
    return source, loaded


def _arrived(found: tuple[ModelSource, LoadedModel], task: Task) -> Task:
    source, loaded = found
    traced = replace(task.traced, model=loaded.model)
    recipe = replace(task.recipe, hook=loaded.optimizer)
    return replace(task, source=source, traced=traced, loss=loaded.loss, recipe=recipe)


def _layer_names(task: Task) -> tuple[str, ...]:
    return tuple(layer.name for layer in task.traced.layers)
