"""The package's example models, by name: files as a user would write them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from dst_analyze.errors import ModelError
from dst_analyze.model.loading.torchvision_compat import make_importable
from dst_analyze.model.loading.user_module import UserModule
from dst_analyze.model.user_errors import did_you_mean
from dst_analyze.package import EXAMPLES, PACKAGE

PREFIX = "example"


@dataclass(frozen=True)
class Example:
    """An entry of the list of examples."""

    name: str
    about: str  # the first line of the file's docstring
    params: int | None  # None if the package that it needs is not installed
    arguments: str  # what ``--model-arg`` may set, with the defaults


def names() -> list[str]:
    """Return the names of all examples: their files' names, with dashes."""
    return sorted(file.stem.replace("_", "-") for file in EXAMPLES.glob("[!_]*.py"))


def import_example(name: str) -> UserModule:
    """Return an example's module, imported from this package so that workers can import it too."""
    if name not in names():
        otherwise = "`dst-analyze --list-examples` shows them"
        raise ModelError(f"There is no example {name!r}.", hint=did_you_mean(name, names(), otherwise))
    stem = name.replace("-", "_")
    module = importlib.import_module(f"{PACKAGE.name}.{EXAMPLES.name}.{stem}")
    return UserModule(module, f"{PREFIX}:{name}", Path(f"{EXAMPLES / stem}.py"), None)


def all_examples() -> Iterator[Example]:
    """Yield every example; each is built on the meta device to count its parameters."""
    make_importable()
    for name in names():
        module = import_example(name).module
        try:
            with torch.device("meta"):
                params = sum(parameter.numel() for parameter in module.build_model().parameters())
        except ModuleNotFoundError:
            params = None
        signature = inspect.signature(module.build_model).parameters.values()
        arguments = ", ".join(f"{argument.name}={argument.default}" for argument in signature)
        yield Example(name, (module.__doc__ or "").partition("\n")[0], params, arguments)
