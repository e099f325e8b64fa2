"""Selection of the model among the objects that a user's module defines."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from torch import nn

from dst_analyze.errors import ModelError
from dst_analyze.model.loading.user_module import UserModule
from dst_analyze.model.user_errors import describe_value, did_you_mean


@dataclass(frozen=True)
class Found:
    """A model or something that builds one when called, and where it was found."""

    value: nn.Module | Callable[..., Any]
    label: str
    origin: UserModule | None = None

    @property
    def file(self) -> Path | None:
        """The Python file that defines it, if any."""
        return self.origin.file if self.origin else None

    @property
    def folder(self) -> Path | None:
        """The folder from which its imports start, if any."""
        return self.origin.folder if self.origin else None

    @property
    def place(self) -> str:
        """The file's path as error messages show it."""
        return self.origin.place if self.origin else ""


def find_named(start: UserModule, path: str) -> Found:
    """Return the object named `Net` or `zoo.small`; raise `ModelError` if it is no model."""
    value: Any = start.module
    for part in path.split("."):
        if not hasattr(value, part):
            names = [name for name in dir(value) if not name.startswith("_")]
            otherwise = f"write {start.label}:NAME with a class, a function or a model defined there"
            raise ModelError(
                f"There is no {path!r} in {start.label}.", place=start.place, hint=did_you_mean(part, names, otherwise)
            )
        value = getattr(value, part)
    if not can_be_model(value):
        raise ModelError(
            f"{start.label}:{path} is {describe_value(value)}, not a model.",
            place=start.place,
            hint="name an nn.Module class, a function that returns a model, or a model",
        )
    return Found(value, f"{start.label}:{path}", start)


def find_unnamed(start: UserModule, arguments: Collection[str]) -> Found:
    """Return `build_model`, else `model`, else the only model there is, else the only class that can be built.

    The given arguments are those that a class is built with.
    """
    for name in ("build_model", "model"):
        value = getattr(start.module, name, None)
        if can_be_model(value):
            return Found(value, f"{start.label}:{name}", start)
    models = {} if arguments else _own_models(start.module)
    if len(models) == 1:
        ((name, model),) = models.items()
        return Found(model, f"{start.label}:{name}", start)
    classes = _own_classes(start.module)
    ready = [kind for kind in classes if not Call(kind, arguments).wrong]
    if len(ready) == 1 or (len(classes) == 1 and not models):
        (kind,) = ready or classes
        return Found(kind, f"{start.label}:{kind.__name__}", start)
    if models and not ready:
        raise ModelError(
            f"{start.label} has {len(models)} models: {', '.join(models)}.",
            place=start.place,
            hint=f"choose one, {start.label}:{next(iter(models))}, or define build_model()",
        )
    raise _no_choice(start, classes, ready, arguments)


def _no_choice(
    start: UserModule, classes: list[type[nn.Module]], ready: list[type[nn.Module]], arguments: Collection[str]
) -> ModelError:
    label = start.label
    if ready:
        return ModelError(
            f"{label} has {len(ready)} classes that could be the model: {', '.join(kind.__name__ for kind in ready)}.",
            place=start.place,
            hint=f"choose one, {label}:{ready[-1].__name__}, or define build_model()",
        )
    if classes:
        signatures = ", ".join(f"{kind.__name__}({', '.join(Call(kind, ()).takes)})" for kind in classes)
        return ModelError(
            f"No class in {label} can be built with {', '.join(arguments) or 'no arguments'}: {signatures}.",
            place=start.place,
            hint=f"choose one and pass its arguments, {label}:{classes[-1].__name__} --model-arg name=value, "
            "or define build_model()",
        )
    below = "" if not _has_main_block(start) else "; what is below `if __name__ == '__main__':` is not run here"
    return ModelError(
        f"{label} defines no model: no build_model(), no `model`, no nn.Module class.",
        place=start.place,
        hint=f"define build_model() that returns the model, or name it: {label}:NAME{below}",
    )


def _has_main_block(start: UserModule) -> bool:
    try:
        text = start.file.read_text() if start.file else ""
    except (OSError, UnicodeDecodeError):
        return False
    return bool(re.search(r"^if\s+__name__\s*==", text, re.MULTILINE))


def _own_models(module: ModuleType) -> dict[str, nn.Module]:
    """Return the models that the file has built, by their names, each once; losses and other parts without weights
    are none."""
    models: dict[int, tuple[str, nn.Module]] = {}
    for name, value in vars(module).items():
        if isinstance(value, nn.Module) and not name.startswith("_") and any(True for _ in value.parameters()):
            models.setdefault(id(value), (name, value))
    held = {id(part) for _, model in models.values() for part in model.modules() if part is not model}
    return {name: model for number, (name, model) in models.items() if number not in held}


def can_be_model(value: object) -> TypeGuard[nn.Module | Callable[..., Any]]:
    """True for a model, a class of models, and a function that may return one."""
    return issubclass(value, nn.Module) if isinstance(value, type) else callable(value)


def _own_classes(module: ModuleType) -> list[type[nn.Module]]:
    """Return the public nn.Module classes that the file itself defines, each once, in the file's order."""
    values = dict.fromkeys(value for value in vars(module).values() if isinstance(value, type))
    own = (value for value in values if issubclass(value, nn.Module) and value.__module__ == module.__name__)
    return [value for value in own if not value.__name__.startswith("_")]


class Call:
    """A check of keywords against a function's signature: which are missing, which are unknown."""

    def __init__(self, function: Callable[..., Any], arguments: Collection[str]) -> None:
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # written in C, without a signature: nothing can be checked
            self.takes: list[str] = []
            self.missing: list[str] = []
            self.unknown: list[str] = []
            return
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self.takes = [p.name for p in named if p.kind is not p.POSITIONAL_ONLY]
        self.missing = [p.name for p in named if p.default is p.empty and p.name not in arguments]
        self.unknown = [name for name in arguments if name not in self.takes and not anything]

    @property
    def wrong(self) -> bool:
        """True if the call would fail."""
        return bool(self.missing or self.unknown)
