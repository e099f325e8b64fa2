"""`slim_call.py`: the call that builds the slim widths with the class of torchvision or timm itself.

What a builder's own arguments can say is said by them; the layers that are left are replaced, one line each. The file
is written only if its model takes the slim model's tensors and computes the same.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from dst_analyze.model.isolation import preserved
from dst_analyze.model.loading import hubs
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.slimming.exports.same_class import MismatchError, compare_class, fill_from
from dst_analyze.slimming.source.constructors import Imports, construct
from dst_analyze.slimming.source.literals import SourceError, is_plain, literal, wrapped
from dst_analyze.version import __version__

Shape = tuple[int, ...]
_HEADS = 2  # layers that a user may have given other widths, such as a classifier for other classes
_MOST_REPLACED = 200  # lines of a file that somebody reads


@dataclass(frozen=True)
class Call:
    """The expression that builds a library's model, the names that it needs, and what its arguments are worth."""

    text: str
    imports: tuple[str, ...]
    names: Mapping[str, Any] = field(default_factory=dict)  # to evaluate the text with


def slim_call(traced: TracedModel, slim: fx.GraphModule, spec: str, model_args: Mapping[str, Any]) -> tuple[str, str]:
    """Return the text of the file, empty if there is none, and why not.

    Args:
        traced: The model as it was.
        slim: The slim model.
        spec: What the model was loaded by; only those of a collection have a call.
        model_args: The arguments that it was built with.
    """
    collection, colon, name = spec.partition(":")
    if not colon or collection not in hubs.COLLECTIONS:
        collection, name, model_args = *_known_builder(traced.model), {}
    if not name:
        return "", ""
    reason, wanted, spec = "", _shapes(slim), f"{collection}:{name}"
    for call in _calls(collection, name, model_args, traced, wanted):
        try:
            with preserved(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                lines, imports = _replacements(eval(call.text, dict(call.names)), slim)
                text = _text(call, lines, imports, spec)
                built = _run(text)
                fill_from(built, slim, traced.model)
                compare_class(slim, built, traced.inputs)
            return text, ""
        except (MismatchError, SourceError) as error:
            reason = reason or str(error)
        except Exception as error:  # arguments that the class refuses
            reason = reason or f"{type(error).__name__}: {error}"
    return "", reason


def _known_builder(model: nn.Module) -> tuple[str, str]:
    """Return the collection and the builder of a model that a user's file builds; empty if it is of none."""
    kind = type(model)
    if kind.__module__.startswith("timm.models."):
        config = getattr(model, "pretrained_cfg", None) or {}
        return "timm", str(config.get("architecture") or "")
    if not kind.__module__.startswith("torchvision.models."):
        return "", ""
    from torchvision import models

    own = _shapes(model)
    for name in models.list_models():
        builder = models.get_model_builder(name)
        if builder.__module__ != kind.__module__:
            continue
        shapes = _built(hubs.builder("torchvision", name, {}), {}) or {}
        if shapes.keys() == own.keys():
            other = [key for key in own if shapes[key] != own[key]]
            if len({key.rpartition(".")[0] for key in other}) <= _HEADS:
                return "torchvision", name
    return "", ""


def _shapes(module: nn.Module) -> dict[str, Shape]:
    return {name: tuple(p.shape) for name, p in module.named_parameters(remove_duplicate=False)}


def _run(text: str) -> nn.Module:
    names: dict[str, Any] = {"__name__": "slim_call"}
    exec(compile(text, "slim_call.py", "exec", dont_inherit=True), names)
    built: nn.Module = names["build_model"]()
    return built


# --- calls of the builder, from those that say most to the plain one ----------------------------------------------


def _calls(
    collection: str, name: str, arguments: Mapping[str, Any], traced: TracedModel, wanted: Mapping[str, Shape]
) -> Iterator[Call]:
    model = traced.model
    for family, make in _FAMILIES.items():
        if type(model).__module__ == family:
            with suppress(KeyError):  # a layer that the slim model has under another name, or not at all
                yield make(model, dict(arguments), wanted)
    build = hubs.builder(collection, name, arguments)
    given = _own_arguments(build, model, arguments, wanted)
    if given != arguments:
        yield _builder_call(collection, name, given)
    yield _builder_call(collection, name, arguments)


def _builder_call(collection: str, name: str, arguments: Mapping[str, Any]) -> Call:
    given = "".join(f", {key}={literal(value)}" for key, value in arguments.items())
    if collection == "timm":
        return Call(f'timm.create_model("{name}"{given})', ("import timm",), {"timm": __import__("timm")})
    from torchvision import models

    return Call(
        f'models.get_model("{name}", weights=None{given})', ("from torchvision import models",), {"models": models}
    )


def _own_arguments(
    build: Callable[..., nn.Module], model: nn.Module, arguments: Mapping[str, Any], wanted: Mapping[str, Shape]
) -> dict[str, Any]:
    """Return arguments with which a builder comes nearest to the slim shapes: one width at a time, in turn."""
    own = {name: shape for name, shape in _shapes(model).items() if name in wanted}
    best, missed = dict(arguments), sum(own[name] != wanted[name] for name in own)
    for key, now in _width_arguments(type(model)).items():
        for value in _values(build, best, key, best.get(key, now), own, wanted):
            shapes = _built(build, {**best, key: value})
            if shapes is None or shapes.keys() != _shapes(model).keys():
                continue
            wrong = sum(shapes[name] != wanted[name] for name in own)
            if wrong < missed:
                best, missed = {**best, key: value}, wrong
    return best


_WIDTHS = ("embed_dim", "width_per_group", "growth_rate", "num_init_features", "bn_size", "mlp_ratio", "base_width",
           "hidden_dim", "mlp_dim", "num_features", "stem_width", "width_mult")  # fmt: skip


def _width_arguments(kind: type[nn.Module]) -> dict[str, Any]:
    """Return the arguments of a class that are one width, with their defaults."""
    parameters = inspect.signature(kind).parameters
    return {
        name: parameters[name].default
        for name in _WIDTHS
        if name in parameters and isinstance(parameters[name].default, int | float)
    }


def _values(
    build: Callable[..., nn.Module],
    arguments: Mapping[str, Any],
    key: str,
    now: Any,
    own: Mapping[str, Shape],
    wanted: Mapping[str, Shape],
) -> list[Any]:
    """Return values of an argument that would give some slim shape, if shapes are multiples of it."""
    probe = now * 2
    shapes = _built(build, {**arguments, key: probe})
    if shapes is None:
        return []
    found: dict[Any, int] = {}
    for name, before in own.items():
        if len(shapes.get(name, ())) != len(before):
            continue
        for one, other, target in zip(before, shapes[name], wanted[name], strict=True):
            if other == 2 * one and target != one:
                value = now * target / one
                value = int(value) if isinstance(now, int) and value == int(value) else value
                if isinstance(value, type(now)):
                    found[value] = found.get(value, 0) + 1
    return sorted(found, key=lambda value: -found[value])[:4]


def _built(build: Callable[..., nn.Module], arguments: Mapping[str, Any]) -> dict[str, Shape] | None:
    try:
        with preserved(), torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _shapes(build(**arguments))
    except Exception:  # a value that the builder refuses
        return None


# --- families whose widths stand in a list --------------------------------------------------------------------------


def _vgg(model: Any, arguments: dict[str, Any], wanted: Mapping[str, Shape]) -> Call:
    """Return VGG with the list of its convolutions' widths; the classifier's are fixed in its class."""
    from torchvision.models import vgg

    cfg: list[Any] = []
    norm = any(isinstance(layer, nn.BatchNorm2d) for layer in model.features)
    for index, layer in enumerate(model.features):
        if isinstance(layer, nn.Conv2d):
            cfg.append(wanted[f"features.{index}.weight"][0])
        elif isinstance(layer, nn.MaxPool2d):
            cfg.append("M")
    given = "".join(f", {key}={literal(value)}" for key, value in {"init_weights": False, **arguments}.items())
    layers = f"make_layers({literal(cfg)}, batch_norm={norm})"
    return Call(
        f"VGG({layers}{given})",
        ("from torchvision.models.vgg import VGG, make_layers",),
        {"VGG": vgg.VGG, "make_layers": vgg.make_layers},
    )


def _mobilenet_v2(model: Any, arguments: dict[str, Any], wanted: Mapping[str, Shape]) -> Call:
    """Return MobileNetV2 with one row per block: expansion, channels, repetitions, stride."""
    from torchvision.models import mobilenetv2

    rows: list[list[Any]] = []
    inside = wanted["features.0.0.weight"][0]
    for index, block in enumerate(model.features):
        if not isinstance(block, mobilenetv2.InvertedResidual):
            continue
        outside, middle = wanted[f"features.{index}.conv.{len(block.conv) - 2}.weight"][:2]
        expansion: Any = middle / inside
        rows.append([int(expansion) if expansion == int(expansion) else expansion, outside, 1, block.stride])
        inside = outside
    values = {"inverted_residual_setting": rows, "round_nearest": 1, **arguments}
    given = ", ".join(f"{key}={literal(value)}" for key, value in values.items())
    return Call(
        f"MobileNetV2({given})",
        ("from torchvision.models.mobilenetv2 import MobileNetV2",),
        {"MobileNetV2": mobilenetv2.MobileNetV2},
    )


_FAMILIES: dict[str, Callable[[Any, dict[str, Any], Mapping[str, Shape]], Call]] = {
    "torchvision.models.vgg": _vgg,
    "torchvision.models.mobilenetv2": _mobilenet_v2,
}


# --- layers that no argument decides --------------------------------------------------------------------------------


def _replacements(built: nn.Module, slim: fx.GraphModule) -> tuple[list[str], Imports]:
    """Return the lines that replace the layers of a built model whose shapes are not the slim model's."""
    imports, lines = Imports(), []
    slim_modules = dict(slim.named_modules())
    for name, module in built.named_modules():
        other = slim_modules.get(name)
        if other is None or any(module.children()):
            continue
        shapes = [{key: tuple(p.shape) for key, p in m.named_parameters(recurse=False)} for m in (module, other)]
        if shapes[0] != shapes[1]:
            lines.append(f"{_path(name, built)} = {construct(other, imports)}")
    if len(lines) > _MOST_REPLACED:
        raise SourceError(f"{len(lines)} layers have widths that no argument decides")
    return [_indexed(line) for line in lines], imports


def _path(name: str, root: nn.Module) -> str:
    """Return the expression for a submodule, which can be assigned to."""
    text, module = "model", root
    for part in name.split("."):
        if part.isdigit() and isinstance(module, nn.Sequential | nn.ModuleList):
            text += f"[{part}]"
        elif is_plain(part):
            text += f".{part}"
        else:
            raise SourceError(f"{name} cannot be replaced by an assignment")
        module = module.get_submodule(part)
    return text


def _indexed(line: str) -> str:
    return wrapped(f"    {line}", "    ").removeprefix("    ") if len(line) > 110 else line


def _text(call: Call, lines: list[str], imports: Imports, spec: str) -> str:
    named = [line for line in imports.lines(functional=False) if "safetensors" not in line and line != "import torch"]
    needed = [*named, *call.imports] if lines else list(call.imports)
    named_nn = "from torch import nn"
    if named_nn not in needed:
        needed = [named_nn, *needed]
    how = "by the arguments of its class" if not lines else f"with {len(lines)} layers in place of its own"
    built = wrapped(f"    model: nn.Module = {call.text}", "    ")
    body = [built, *(f"    {line}" for line in lines), "    return model"]
    return "\n".join(
        [
            f'"""{spec} with the slim widths, {how}; checked by dst-analyze {__version__}.',
            "",
            "`build_model()` has new weights. Those of slim_model.safetensors have the same names:",
            '`build_model().load_state_dict(load_file("slim_model.safetensors"), strict=False)`.',
            '"""',
            "",
            *sorted(dict.fromkeys(needed)),
            "",
            "",
            "def build_model() -> nn.Module:",
            '    """Return the model of the library\'s own class."""',
            *body,
            "",
        ]
    )
