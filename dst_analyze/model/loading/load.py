"""`load_model`: from a spec to the model, its name, and the hooks that its file defines."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from dst_analyze.errors import ModelError
from dst_analyze.model.loading import bundled, hubs, lightning, select, user_module
from dst_analyze.model.loading.hooks import HOOKS, Hook, find_hook
from dst_analyze.model.loading.select import Call, Found
from dst_analyze.model.loading.user_module import UserModule
from dst_analyze.model.user_errors import describe_value, did_you_mean, user_code


@dataclass(frozen=True)
class LoadedModel:
    """A model, and the hooks that its file defines, not called yet; a hook is None if the file has none.

    Attributes:
        model: The model.
        spec: The spec that it was loaded from, as a string.
        name: A name for folders and reports, made from the spec.
        file: The Python file that defines it; None for an object or a model of a collection.
        example_inputs: Returns inputs that the model can be called with.
        train_data: Returns the training data: a DataLoader, a Dataset or tensors.
        test_data: Returns the test data, like ``train_data``.
        loss: Returns the loss, given the model's outputs and a whole batch; given the model and a batch if its
            attribute ``takes_model`` is true.
        optimizer: Returns an optimizer for the given parameters.
        fit: Trains a model in place, in the file's own way.
        evaluate: Returns a model's score.
        needs_data: Why digits must not stand in for missing data; "" if they may.

    Example:
        >>> import dst_analyze
        >>> loaded = dst_analyze.load_model("example:lenet-300-100")
        >>> loaded.name, loaded.train_data is None
        ('lenet-300-100', True)
    """

    model: nn.Module
    spec: str
    name: str
    file: Path | None
    example_inputs: Callable[[], Any] | None
    train_data: Callable[[], Any] | None
    test_data: Callable[[], Any] | None
    loss: Callable[[Any, Any], torch.Tensor] | None
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None
    fit: Callable[[nn.Module], Any] | None = None
    evaluate: Callable[[nn.Module], Any] | None = None
    needs_data: str = ""


def load_model(
    spec: str | os.PathLike[str] | nn.Module | Callable[..., Any],
    *,
    model_args: Mapping[str, Any] | None = None,
    device: str | torch.device = "cpu",
) -> LoadedModel:
    """Return a model and its hooks, built with the given arguments on the given device.

    Args:
        spec: An ``nn.Module``; a class or function that builds one; or a string such as ``mymodel.py``,
            ``mymodel.py:Net``, ``package.module:factory``, ``torchvision:resnet18``, ``timm:NAME`` or ``example:NAME``.
        model_args: Keyword arguments for the class or function that builds the model.
        device: Where to build the model. On "meta", a model that cannot be built without memory is built on the CPU.
            A model that exists already (``model = Net()`` in a file, or an object) stays where it is.

    Returns:
        The model and its hooks.

    Raises:
        ModelError: The spec leads to no model, or building the model fails.

    Example:
        >>> import dst_analyze
        >>> loaded = dst_analyze.load_model("torchvision:resnet18", model_args={"num_classes": 10})
        >>> loaded.model.fc.out_features
        10
    """
    source = _source(spec)
    model, found = _build(source, dict(model_args or {}), torch.device(device))
    hooks: dict[str, Any] = {name: find_hook(name, found) for name in HOOKS}
    needs_data = ""
    if lightning.is_lightning_like(model):
        lightning.refuse_without_forward(model, found.label)
        own = lightning.hooks_of(model, lightning.data_module_in(found.origin.module if found.origin else None))
        hooks = {
            name: hook or (Hook(name, own[name], found.file, found.folder) if name in own else None)
            for name, hook in hooks.items()
        }
        needs_data = "" if hooks["train_data"] else lightning.NO_DATA
    return LoadedModel(model, source.spec, _safe(source.name), found.file, **hooks, needs_data=needs_data)


# --- where a model comes from --------------------------------------------------------------------------------------


class _Source(Protocol):
    """A place where a model comes from; `find` runs a user's file anew each time."""

    @property
    def spec(self) -> str: ...
    @property
    def name(self) -> str: ...
    def find(self, arguments: Mapping[str, Any]) -> Found: ...


@dataclass(frozen=True)
class _File:
    spec: str
    path: Path
    target: str

    @property
    def name(self) -> str:
        return f"{self.path.stem}-{self.target}" if self.target else self.path.stem

    def find(self, arguments: Mapping[str, Any]) -> Found:
        return _pick(user_module.import_file(self.path), self.target, arguments)


@dataclass(frozen=True)
class _Module:
    spec: str
    module: str
    target: str

    @property
    def name(self) -> str:
        last = self.module.rpartition(".")[2]
        return f"{last}-{self.target}" if self.target else last

    def find(self, arguments: Mapping[str, Any]) -> Found:
        return _pick(user_module.import_named(self.module), self.target, arguments)


@dataclass(frozen=True)
class _Collection:
    spec: str
    collection: str
    name: str

    def find(self, arguments: Mapping[str, Any]) -> Found:
        with user_code(self.spec):
            return Found(hubs.builder(self.collection, self.name, arguments), self.spec)


@dataclass(frozen=True)
class _Example:
    spec: str
    name: str

    def find(self, arguments: Mapping[str, Any]) -> Found:
        return _pick(bundled.import_example(self.name), "", arguments)


@dataclass(frozen=True)
class _Object:
    spec: str
    value: Any

    @property
    def name(self) -> str:
        return self.spec

    def find(self, arguments: Mapping[str, Any]) -> Found:
        if not select.can_be_model(self.value):
            raise ModelError(
                f"The given object is {describe_value(self.value)}, not a model.",
                hint="give an nn.Module, a function that returns one, or a string: " + user_module.SPEC_FORMS,
            )
        return Found(self.value, self.spec)


def _pick(module: UserModule, target: str, arguments: Mapping[str, Any]) -> Found:
    return select.find_named(module, target) if target else select.find_unnamed(module, arguments)


def _source(spec: object) -> _Source:
    """Return the source that a spec stands for."""
    if not isinstance(spec, str | os.PathLike):
        return _Object(getattr(spec, "__name__", type(spec).__name__), spec)
    text = os.fspath(spec).strip()
    if not text:
        raise ModelError("The model's name is empty.", hint=user_module.SPEC_FORMS)
    collection, colon, name = text.partition(":")
    if colon and name and collection in hubs.COLLECTIONS:
        return _Collection(text, collection, name)
    if colon and collection == bundled.PREFIX:
        return _Example(text, name)
    where, colon, target = text.rpartition(":")
    if not where or re.search(r"[/\\]|\.(py|ipynb)$", target):  # the colon belongs to a Windows drive
        where, colon, target = text, "", ""
    if colon and not target:
        raise ModelError(f"{text!r} names nothing after the colon.", hint=user_module.SPEC_FORMS)
    path = Path(where).expanduser()
    if (
        where.endswith((".py", ".ipynb"))
        or re.search(r"[/\\]", where)
        or (path.exists() and not (path / "__init__.py").exists())
    ):
        return _File(text, path, target)
    return _Module(text, where, target)


def absolute(spec: Any) -> Any:
    """Return the spec with an absolute path if it names a file, so that it holds in every folder."""
    source = _source(spec)
    if not isinstance(source, _File):
        return spec
    return f"{source.path.resolve()}{f':{source.target}' if source.target else ''}"


def file_named(spec: str) -> Path | None:
    """Return the file that a spec names; None for a module, a collection or an example. Nothing is run."""
    source = _source(spec)
    return source.path.resolve() if isinstance(source, _File) else None


def imports_start(spec: str) -> Path:
    """Return the folder from which the code of a spec imports the user's modules."""
    file = file_named(spec)
    return Path.cwd() if file is None else file.parent


def _safe(name: str) -> str:
    """Return the name with only characters that a folder's name may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "model"


# --- building ------------------------------------------------------------------------------------------------------


def _build(source: _Source, arguments: Mapping[str, Any], device: torch.device) -> tuple[nn.Module, Found]:
    found = source.find(arguments)
    if isinstance(found.value, nn.Module):
        if arguments:
            raise ModelError(
                f"{found.label} is a model already and takes no arguments: {', '.join(arguments)}.",
                place=found.place,
                hint=f"define build_model({', '.join(arguments)}) that builds it, or name its class",
            )
        return found.value, found
    _check_arguments(found, arguments)
    if device.type == "meta":
        try:
            with torch.device(device), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _call(found, arguments).to(device), found
        except Exception:
            found = source.find(arguments)  # import again: the failed build may have left state in the module
            return _call(found, arguments), found
    return _call(found, arguments).to(device), found


def _check_arguments(found: Found, arguments: Mapping[str, Any]) -> None:
    call = Call(found.value, arguments)
    if call.unknown:
        wrong = call.unknown[0]
        takes = f"it takes {', '.join(call.takes)}" if call.takes else "it takes none"
        raise ModelError(
            f"{found.label} takes no argument {wrong!r}.",
            place=found.place,
            hint="; ".join(filter(None, (did_you_mean(wrong, call.takes), takes))),
        )
    if call.missing:
        raise ModelError(
            f"{found.label} needs {'arguments' if call.missing[1:] else 'an argument'}: {', '.join(call.missing)}.",
            place=found.place,
            hint="pass "
            + " ".join(f"--model-arg {name}=..." for name in call.missing)
            + ", or define build_model() without arguments",
        )


def _call(found: Found, arguments: Mapping[str, Any]) -> nn.Module:
    call = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    with (
        user_code(
            f"{found.label}, while building the model,", file=found.file, hint=f"it was called as {found.label}({call})"
        ),
        user_module.imports_from(found.folder, found.file),
    ):
        built = found.value(**arguments)
    if not isinstance(built, nn.Module):
        raise ModelError(
            f"{found.label} returned {describe_value(built)}, not an nn.Module.",
            place=found.place,
            hint=_return_hint(built),
        )
    return built


def _return_hint(built: object) -> str:
    hints: dict[type, str] = {
        type(None): "does it end in `return model`?",
        type: "return an instance of it: `return Net()`, not `return Net`",
        tuple: "return the model alone",
        dict: "return the model alone",
    }
    return next((hint for kind, hint in hints.items() if isinstance(built, kind)), "return the nn.Module itself")
