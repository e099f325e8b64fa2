"""The constructor calls of layers, from their attributes: torch's layers store their arguments by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dst_analyze.model.loading.module_finder import MADE_FROM_FILE
from dst_analyze.slimming.attention import HeadAttention
from dst_analyze.slimming.source.literals import SourceError, is_plain, literal
from dst_analyze.slimming.source.templates import Piece, Slot, Template, joined, rendered, separated, with_role

_RECURRENT = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
_RECURRENT_DEFAULTS = {
    "num_layers": 1,
    "bias": True,
    "batch_first": False,
    "dropout": 0.0,
    "bidirectional": False,
    "proj_size": 0,
    "nonlinearity": "tanh",
}
_HARMLESS = {"__init__", "__repr__", "__setstate__", "extra_repr", "reset_parameters"}


WITH_PARTS = "with_parts"
_REQUIRED: Any = object()
# Short names of what an argument of a class is, behind the name of the part: ``conv1_out``.
_ROLES = {
    **dict.fromkeys(("in_channels", "in_features", "input_size", "in1_features"), "in"),
    **dict.fromkeys(("out_channels", "out_features", "hidden_size", "out_dim"), "out"),
    **dict.fromkeys(("num_features", "normalized_shape", "num_channels", "embedding_dim", "num_parameters"), "width"),
    "num_heads": "heads",
    "kernel_size": "kernel",
    "embed_dim": "in",
}
_TORCH_LAYERS = frozenset(kind for kind in vars(nn).values() if isinstance(kind, type)) - {nn.Module}


class Imports:
    """The imports of the written file."""

    def __init__(self) -> None:
        self._modules: set[str] = set()
        self._names: dict[str, str] = {}  # name -> module

    def module(self, name: str) -> None:
        """Add a module of the standard library."""
        self._modules.add(name)

    def name(self, module: str, name: str) -> str:
        """Add a class or function of a third-party module; raise if other files cannot import it."""
        if not all(is_plain(part) for part in (*module.split("."), name)) or self._names.get(name, module) != module:
            raise SourceError(f"{module}.{name} cannot be imported by a file")
        try:
            getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise SourceError(f"{name} cannot be imported from {module}") from error
        if module == "__main__":
            raise SourceError(f"{name} is defined in the running script", hint="put it into a separate module")
        if module.startswith(MADE_FROM_FILE):
            hint = "put it into a separate module beside the model file, and import it there"
            raise SourceError(f"{name} is defined in the model file, which other files cannot import", hint=hint)
        self._names[name] = module
        return name

    def names(self) -> list[str]:
        """Return the names that are imported from third-party modules."""
        return list(self._names)

    def lines(self, functional: bool) -> list[str]:
        """Return the import lines of torch and of third-party modules."""
        named: dict[str, list[str]] = {"safetensors.torch": ["load_file"], "torch": ["nn"]}
        if functional:
            named["torch.nn"] = ["functional as F"]
        for name, module in self._names.items():
            named.setdefault(module, []).append(name)
        froms = [
            f"from {module} import {', '.join(sorted(named[module], key=_import_order))}" for module in sorted(named)
        ]
        return ["import torch", *froms]

    def standard(self, ordered: bool) -> list[str]:
        """Return the import lines of the standard library."""
        modules = [f"import {name}" for name in sorted(self._modules)]
        return [*modules, *(["from collections import OrderedDict"] if ordered else []), "from pathlib import Path"]


def _import_order(name: str) -> tuple[bool, bool, str]:
    """Return the key by which formatters sort names: constants, classes, functions."""
    return not name.isupper(), not name[:1].isupper(), name


def construct(module: nn.Module, imports: Imports) -> str:
    """Return the expression that builds a layer like this one, with new weights."""
    return rendered(constructor(module, imports))


def constructor(module: nn.Module, imports: Imports, was: Mapping[str, Any] | None = None) -> Template:
    """Return the expression that builds a layer, its literals as slots; ``was`` has their values before slimming."""
    kind = _constructor_class(type(module))
    if module._forward_hooks or module._forward_pre_hooks:
        raise SourceError(f"a {kind.__name__} has a hook, as of an old spectral_norm, which no file can register")
    if isinstance(module, HeadAttention):
        name = "HeadAttention"
    elif type(module).__name__ == "StochasticDepth" and type(module).__module__.startswith("torchvision."):
        probability, mode = Slot(float(module.p), "drop"), literal(str(module.mode))  # type: ignore[arg-type]
        return ("StochasticDepth(", probability, f", {mode})")
    elif kind in _TORCH_LAYERS:
        name = f"nn.{kind.__name__}"
    else:
        name = imports.name(kind.__module__, kind.__name__)
    arguments = _recurrent(module) if isinstance(module, nn.RNNBase) else _arguments(module, kind)
    parts: dict[str, nn.Module] = {}
    if not name.startswith("nn.") and not isinstance(module, HeadAttention):
        given = {key: value for key, value, default in arguments if default is _REQUIRED or value != default}
        parts = _check_rebuilds(module, kind, given)
    required = [key for key, parameter in inspect.signature(kind).parameters.items() if _is_required(parameter)]
    if isinstance(module, nn.RNNBase):
        required = ["input_size", "hidden_size"]
    pieces: list[Piece] = [f"{name}("]
    for key, value, default in arguments:
        before = ", " if key in required else f", {key}="
        options = {} if default is _REQUIRED else {"default": default}
        if was and key in was:
            options["was"] = literal(_simple(module, key, was[key]))
        pieces.append(Slot(value, _ROLES.get(key, key), before, key=key, **options))
    call = (*pieces, ")")
    if not parts:
        return call
    made = [joined(f"{key}=", with_role(constructor(part, imports), key)) for key, part in parts.items()]
    return joined(f"{WITH_PARTS}(", call, ", ", separated(made), ")")


def _constructor_class(kind: type[nn.Module]) -> Any:
    """Return the class to construct: the torch.nn base of a subclass that overrides only its constructor."""
    for cls in kind.__mro__:
        if cls in _TORCH_LAYERS:
            return cls
        if any(callable(v) or isinstance(v, property) for key, v in vars(cls).items() if key not in _HARMLESS):
            return kind
    return kind


def _is_required(parameter: inspect.Parameter) -> bool:
    positional = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY)
    return positional and parameter.default is parameter.empty


def _arguments(module: nn.Module, kind: type[nn.Module]) -> list[tuple[str, Any, Any]]:
    """Return the constructor's arguments: name, value and default."""
    found: list[tuple[str, Any, Any]] = []
    for key, parameter in inspect.signature(kind).parameters.items():
        several = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if key in ("device", "dtype") or key.startswith("_") or several:
            continue
        if not hasattr(module, key):
            if _is_required(parameter):
                raise SourceError(f"a {kind.__name__} does not say which {key} it was built with")
            continue
        value = _simple(module, key, getattr(module, key))
        if parameter.default is parameter.empty:
            found.append((key, value, _REQUIRED))
        elif _is_written(value) and _is_written(parameter.default):
            found.append((key, value, parameter.default))
        elif value != parameter.default:
            found.append((key, value, _REQUIRED))
    return found


def _is_written(value: Any) -> bool:
    """Return True if a value has a literal."""
    try:
        literal(value)
    except SourceError:
        return False
    return True


def _simple(module: nn.Module, key: str, value: Any) -> Any:
    if key == "bias":
        return value is not None and value is not False
    if isinstance(value, torch.Tensor):
        raise SourceError(f"a {type(module).__name__} was built with a tensor as its {key}")
    if isinstance(module, nn.modules.conv._ConvNd) and isinstance(value, tuple) and len(set(value)) == 1:
        return value[0]
    if key == "normalized_shape" and isinstance(value, tuple) and len(value) == 1:
        return value[0]
    return value


def _recurrent(module: nn.RNNBase) -> list[tuple[str, Any, Any]]:
    extra = {"LSTM": ("proj_size",), "RNN": ("nonlinearity",)}.get(type(module).__name__, ())
    keys = (*_RECURRENT, *extra)
    return [(key, getattr(module, key), _RECURRENT_DEFAULTS.get(key, _REQUIRED)) for key in keys]


def _check_rebuilds(module: nn.Module, kind: type[nn.Module], arguments: dict[str, Any]) -> dict[str, nn.Module]:
    """Return the children of a third-party layer that its attributes do not determine; raise if other things differ.

    The layer is built from its attributes and compared. A child may depend on an argument that is not stored as an
    attribute, such as the activation inside of a norm.
    """
    try:
        twin = kind(**arguments)
    except Exception as error:
        raise SourceError(f"a {kind.__name__} cannot be built from its attributes: {error}") from error
    theirs = dict(twin.named_children())
    parts = {
        key: part
        for key, part in module.named_children()
        if is_plain(key) and key in theirs and repr(part) != repr(theirs[key])
    }
    for key, part in parts.items():
        setattr(twin, key, part)
    same = [{name: tuple(t.shape) for name, t in m.state_dict().items()} for m in (module, twin)]
    if same[0] != same[1] or repr(module) != repr(twin):
        raise SourceError(f"a {kind.__name__} built from its attributes is another one")
    return parts
