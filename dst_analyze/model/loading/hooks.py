"""The hooks that a model file may define beside its model: data, loss, optimizer, a training loop of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from dst_analyze.errors import DataError, DstError, ModelError
from dst_analyze.model.loading import lightning, user_module
from dst_analyze.model.loading.select import Found
from dst_analyze.model.user_errors import describe_value, user_code

HOOKS: dict[str, tuple[type[DstError], str]] = {
    "example_inputs": (ModelError, "example_inputs() returns one input, a tuple of them, or a dict of keywords"),
    "train_data": (DataError, "train_data() returns a DataLoader, a Dataset or tensors"),
    "test_data": (DataError, "test_data() returns a DataLoader, a Dataset or tensors"),
    "loss": (
        ModelError,
        "loss(outputs, batch) gets the whole batch: return F.cross_entropy(outputs, batch[1]); loss(model, batch) gets "
        "the model",
    ),
    "optimizer": (ModelError, "optimizer(parameters) returns an optimizer: return torch.optim.SGD(parameters, lr=0.1)"),
    "fit": (ModelError, "fit(model) trains the model that it is given, in place"),
    "evaluate": (ModelError, "evaluate(model) returns a score, or a dict with score and higher_is_better"),
}
# May be plain values too, and may import late; the other hooks run at every step.
_CALLED_ONCE = ("example_inputs", "train_data", "test_data")
_OF_ONE_MODEL = ("fit", "evaluate")
_VALUES = (torch.Tensor, DataLoader, Dataset)


@dataclass(frozen=True)
class Hook:
    """A user's hook; a class and not a closure, since it is pickled for worker processes."""

    name: str
    function: Callable[..., Any]
    file: Path | None
    folder: Path | None

    @property
    def takes_model(self) -> bool:
        """True for a `loss` that wants the model rather than its outputs."""
        return self.name == "loss" and takes_model(self.function)

    def __call__(self, *arguments: Any) -> Any:
        kind, hint = HOOKS[self.name]
        with (
            user_code(f"{self.name}()", kind, file=self.file, hint=hint),
            user_module.imports_from(self.folder, self.file),
        ):
            return self.function(*arguments)


_MODELS = ("model", "net", "network", "module", "masked", "student")


def takes_model(loss: Callable[..., Any]) -> bool:
    """True if the first parameter of a loss is called `model`, or as models are."""
    if isinstance(loss, lightning.TrainingStep):
        return True
    try:
        return next(iter(inspect.signature(loss).parameters), "") in _MODELS
    except (TypeError, ValueError):
        return False


@dataclass(frozen=True)
class _Constant:
    value: Any

    def __call__(self) -> Any:
        return self.value


def find_hook(name: str, found: Found) -> Hook | None:
    value = getattr(found.origin.module, name, None) if found.origin else None
    if value is None or isinstance(value, ModuleType):  # `import loss` beside a loss.py is no hook
        return None
    if name in _OF_ONE_MODEL and not _takes_a_model(value):
        return None  # a helper of the file's own that happens to have this name
    called_once = name in _CALLED_ONCE
    if called_once and (isinstance(value, _VALUES) or not callable(value)):
        value = _Constant(value)
    if not callable(value):
        raise ModelError(
            f"`{name}` is {describe_value(value)}, not a function.", place=found.place, hint=HOOKS[name][1]
        )
    return Hook(name, value, found.file, found.folder if called_once else None)


def _takes_a_model(function: Any) -> bool:
    """True if a function can be called with one argument alone, which it calls a model."""
    try:
        signature = inspect.signature(function)
        signature.bind(None)
    except (TypeError, ValueError):
        return False
    return next(iter(signature.parameters)) in ("model", "net", "network")
