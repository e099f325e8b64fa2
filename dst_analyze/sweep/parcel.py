"""A task on its way to a worker process: tensors travel as shared memory, what a user's file defines by its name."""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from dst_analyze.model.loading import LoadedModel, load_model
from dst_analyze.model.preserve import preserved_randomness
from dst_analyze.sweep.plan import Request
from dst_analyze.sweep.trial import ModelSource, Task


@dataclass(frozen=True)
class Parcel:
    """Pickles into the task itself; torch moves its tensors into shared memory, where all workers see the same ones."""

    task: Task

    def __reduce__(self) -> tuple[object, ...]:
        traced = self.task.traced
        light = replace(traced, graph=replace(traced.graph, graph_module=None))
        if isinstance(self.task.source.spec, str | Path):
            light = replace(light, model=None)  # type: ignore[arg-type]  # built anew from its file on arrival
        task = replace(self.task, traced=light, loss=None, recipe=replace(self.task.recipe, hook=None))
        # In this order: data may be of classes that exist only once the user's file has been imported.
        return _arrived, (_UserFile(self.task.source), task)


def own(task: Task) -> Task:
    """The task with copies of what its caller holds.

    Sending a tensor moves its memory, in place, to where other processes see it: a numpy array that looks at the same
    memory, in somebody's notebook, would be left looking at nothing.
    """
    held = task.source, task.traced.model, task.train_data, task.test_data
    try:
        source, model, train, test = copy.deepcopy(held)
    except Exception:  # what cannot be copied can hardly be sent, which is dealt with where it is tried
        return task
    return replace(task, source=source, traced=replace(task.traced, model=model), train_data=train, test_data=test)


@dataclass(frozen=True)
class Rebuilt:
    """Pickles into a task that is planned anew on arrival, its data loaded once more: for data that cannot travel."""

    request: Request

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (self.request,)


@dataclass(frozen=True)
class _UserFile:
    """Pickles into the loaded model."""

    source: ModelSource

    def __reduce__(self) -> tuple[object, ...]:
        return _load, (self.source, _user_modules())


def _user_modules() -> dict[str, str]:
    """Modules made from users' files: name → file. A file run twice stands there twice."""
    return {
        name: file
        for name, module in list(sys.modules.items())
        if name.startswith("dst_user_") and (file := getattr(module, "__file__", None))
    }


def _load(source: ModelSource, names: dict[str, str]) -> LoadedModel:
    with preserved_randomness():
        loaded = load_model(source.spec, model_args=source.args)
    own = {file: sys.modules[name] for name, file in _user_modules().items()}
    for name, file in names.items():
        if file in own:
            sys.modules.setdefault(name, own[file])  # objects of the second run are pickled under the second name
    return loaded


def _arrived(loaded: LoadedModel, task: Task) -> Task:
    traced = replace(task.traced, model=loaded.model)
    return replace(task, traced=traced, loss=loaded.loss, recipe=replace(task.recipe, hook=loaded.optimizer))


def _rebuilt(request: Request) -> Task:
    return request.task()
