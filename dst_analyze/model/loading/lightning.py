"""Lightning-like modules, recognised by their methods: their data, optimizer and loss as a model file's hooks.

Lightning itself is not needed: a plain nn.Module with the same methods is used alike.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn

from dst_analyze.errors import ModelError

NO_DATA = (
    "the model has a training_step() but no train_dataloader(): define it, or a data module that needs no arguments, "
    "or train_data() in the file; or give --data"
)
_LIBRARIES = ("lightning", "pytorch_lightning", "lightning_fabric")


def is_lightning_like(model: nn.Module) -> bool:
    """True if a model brings its own training step."""
    return _has(model, "training_step")


def refuse_without_forward(model: nn.Module, label: str) -> None:
    """Raise `ModelError` if a model has a training step only: an analysis needs its forward."""
    if not _has(model, "forward", but=(*_LIBRARIES, "torch")):
        raise ModelError(
            f"{label} has a training_step() but no forward()",
            hint="define forward(self, x) and call it in training_step(), or name the network inside as the model",
        )


def data_module_in(module: ModuleType | None) -> Any:
    """Return a class of the file that is a data module and needs no arguments; None if there is none."""
    for value in vars(module).values() if module else ():
        if not isinstance(value, type) or value.__module__ != module.__name__ or issubclass(value, nn.Module):  # type: ignore[union-attr]
            continue
        if callable(getattr(value, "train_dataloader", None)) and _needs_nothing(value):
            return value
    return None


def hooks_of(model: nn.Module, data_module: Any = None) -> dict[str, Callable[..., Any]]:
    """Return the hooks that a Lightning-like module stands for, by the names of a model file's hooks."""
    hooks: dict[str, Callable[..., Any]] = {"loss": TrainingStep()}
    owner = model if _has(model, "train_dataloader") else data_module
    if owner is not None:
        hooks["train_data"] = Loader(owner, ("train_dataloader",))
        tests = ("val_dataloader", "test_dataloader")
        if any(_has(owner, name) for name in tests):
            hooks["test_data"] = Loader(owner, tests)
    if _has(model, "configure_optimizers"):
        hooks["optimizer"] = ConfiguredOptimizer(model)
    example = getattr(model, "example_input_array", None)
    if example is not None:
        hooks["example_inputs"] = lambda: example
    return hooks


@dataclass(frozen=True)
class Loader:
    """The first loader that a module or data module gives, which is set up before."""

    owner: Any
    names: tuple[str, ...]

    def __call__(self) -> Any:
        owner = self.owner() if isinstance(self.owner, type) else self.owner
        for name, arguments in (("prepare_data", ()), ("setup", ("fit",))):
            if _has(owner, name):
                getattr(owner, name)(*arguments[: len(inspect.signature(getattr(owner, name)).parameters)])
        found = getattr(owner, next(name for name in self.names if _has(owner, name)))()
        if isinstance(found, list | tuple) and len(found) == 1:
            return found[0]
        if isinstance(found, Mapping | list | tuple):
            raise ModelError(
                f"{self.names[0]}() returned {len(found)} loaders", hint="return one, or define train_data()"
            )
        return found


class TrainingStep:
    """The loss that ``training_step(batch, batch_idx)`` of the model returns."""

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        arguments: list[Any] = [batch, 0][: len(inspect.signature(model.training_step).parameters)]
        with warnings.catch_warnings():  # of self.log(), that there is no Trainer: in every process of the sweep
            warnings.filterwarnings("ignore", message=r".*`self\.log\(\)`")
            found = model.training_step(*arguments)
        loss: torch.Tensor = found["loss"] if isinstance(found, Mapping) else found
        return loss


class ConfiguredOptimizer:
    """The optimizer of ``configure_optimizers()``, made anew for the parameters of another copy of the model.

    Its schedulers are left out: a sweep has a schedule of its own.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model: nn.Module | None = model
        self._made: tuple[type[torch.optim.Optimizer], dict[str, Any], list[tuple[list[int], dict[str, Any]]], int]

    def __call__(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        weights = list(parameters)
        kind, defaults, groups, count = self._read()
        make: Callable[..., torch.optim.Optimizer] = kind
        takes = inspect.signature(kind).parameters
        known = {name: value for name, value in defaults.items() if name in takes}
        if count != len(weights):  # of a slim model, which may have fewer
            return make(weights, **known)
        made = [{"params": [weights[at] for at in members], **options} for members, options in groups]
        return make(made, **known)

    def __getstate__(self) -> dict[str, Any]:
        self._read()
        return {"_model": None, "_made": self._made}

    def _read(self) -> Any:
        if self._model is not None:
            own = [p for p in self._model.parameters() if p.requires_grad]
            optimizer = _first(self._model.configure_optimizers())  # type: ignore[operator]
            at = {id(parameter): number for number, parameter in enumerate(own)}
            groups = [
                (
                    [at[id(p)] for p in group["params"] if id(p) in at],
                    {key: value for key, value in group.items() if key not in ("params", "initial_lr")},
                )
                for group in optimizer.param_groups
            ]
            self._made = type(optimizer), dict(optimizer.defaults), groups, len(own)
            self._model = None
        return self._made


def _first(configured: Any) -> torch.optim.Optimizer:
    """Return the optimizer in what configure_optimizers() returned; refuse several."""
    if isinstance(configured, Mapping):
        configured = configured.get("optimizer")
    while isinstance(configured, list | tuple) and configured:
        several = [one for one in configured if isinstance(one, torch.optim.Optimizer)]
        if len(several) > 1:
            raise ModelError(
                f"configure_optimizers() returned {len(several)} optimizers",
                hint="a sweep trains with one: define optimizer(parameters) in the file",
            )
        configured = _first(configured[0]) if isinstance(configured[0], Mapping) else configured[0]
    if not isinstance(configured, torch.optim.Optimizer):
        raise ModelError(
            f"configure_optimizers() returned {type(configured).__name__}",
            hint="return an optimizer, or define optimizer(parameters) in the file",
        )
    return configured


def _has(owner: Any, name: str, but: Collection[str] = _LIBRARIES) -> bool:
    """True if an object's own class defines a method, rather than a base class of these packages."""
    for kind in (owner if isinstance(owner, type) else type(owner)).__mro__:
        if name in vars(kind):
            return kind.__module__.partition(".")[0] not in but
    return False


def _needs_nothing(kind: type) -> bool:
    try:
        inspect.signature(kind).bind()
    except (TypeError, ValueError):
        return False
    return True
