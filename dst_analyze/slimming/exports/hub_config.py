"""The configuration with which a model's own class builds the slim widths, if there is one."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from dst_analyze.model.isolation import preserved

WIDTHS = (
    "intermediate_size",
    "n_inner",
    "ffn_dim",
    "d_ff",
    "dim_feedforward",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "hidden_dim",
    "mlp_dim",
    "moe_intermediate_size",
    "num_key_value_heads",
    "num_attention_heads",
    "n_head",
    "num_heads",
    "n_heads",
    "head_dim",
    "d_kv",
    "hidden_size",
    "n_embd",
    "d_model",
    "dim",
    "embedding_size",
    "embed_dim",
    "pooler_output_size",
    "projection_dim",
    "classifier_proj_size",
)
"""Fields of configurations that decide widths, those that decide least first."""

_MOST_TRIED = 64  # combinations of values
_SHOWN = 3

Shapes = dict[str, tuple[int, ...]]


class ConfigError(Exception):
    """No configuration of the class has the slim widths; the message says why."""


def slim_config(model: nn.Module, slim: nn.Module) -> tuple[Any, dict[str, tuple[Any, Any]]]:
    """Return a configuration for the class of a model that gives the slim model's shapes, and what changed in it.

    Raises:
        ConfigError: There is none, as where layers of one kind have different widths.
    """
    kind, config = type(model), model.config
    own = _shapes_of(model)
    wanted = {name: shape for name, shape in _shapes_of(slim).items() if name in own}
    other_names = getattr(config, "attribute_map", {})  # such as hidden_size for n_embd
    fields = [
        name
        for name in WIDTHS
        if name not in other_names and hasattr(config, name) and isinstance(getattr(config, name), int | None)
    ]
    values: dict[str, list[Any]] = {}
    for field in fields:
        now = getattr(config, field)
        if isinstance(now, bool):
            continue
        found = list(_candidates(kind, config, field, own, wanted))[:2]
        values[field] = [*dict.fromkeys((*found, now))]
    best: tuple[int, list[str]] = (len(wanted) + 1, [])
    for chosen in itertools.islice(itertools.product(*values.values()), _MOST_TRIED):
        changes = dict(zip(values, chosen, strict=True))
        shapes = _built_shapes(kind, config, changes)
        if shapes is None:
            continue
        wrong = [name for name, shape in wanted.items() if shapes.get(name) != shape]
        if not wrong:
            changed = {name: (getattr(config, name), v) for name, v in changes.items() if v != getattr(config, name)}
            return _changed(config, changes), changed
        best = min(best, (len(wrong), wrong))
    raise ConfigError(_why(kind, best[1], wanted, own))


def _why(kind: type, wrong: list[str], wanted: Mapping[str, tuple[int, ...]], own: Shapes) -> str:
    """Return what the configuration cannot express."""
    missed = [name for name in wrong if wanted[name] != own[name]] or wrong
    shown = ", ".join(f"{name} {list(wanted[name])}" for name in missed[:_SHOWN])
    more = f" and {len(missed) - _SHOWN} more" if len(missed) > _SHOWN else ""
    return f"no configuration of {kind.__name__} has these widths, which differ by layer or by head: {shown}{more}"


def _shapes_of(module: nn.Module) -> Shapes:
    return {name: tuple(p.shape) for name, p in module.named_parameters(remove_duplicate=False)}


def _candidates(kind: type, config: Any, field: str, own: Shapes, wanted: Shapes) -> Iterator[int]:
    """Yield the values of a field that would give a slim shape, the most frequent first.

    A field is probed with another value: what changes with it, is a multiple of it.
    """
    now = getattr(config, field)
    counts: dict[int, int] = {}
    for probe in (now * 2, now // 2, now + 1) if now else (8, 16):
        shapes = _built_shapes(kind, config, {field: probe}) if probe else None
        if shapes is None or shapes == own:
            continue
        for name, shape in shapes.items():
            if name not in wanted or len(shape) != len(own.get(name, ())):
                continue
            for after, before, target in zip(shape, own[name], wanted[name], strict=True):
                if after == before or after % probe:
                    continue
                value, rest = divmod(target, after // probe)
                if not rest and value:
                    counts[value] = counts.get(value, 0) + 1
        break
    yield from sorted(counts, key=lambda value: (-counts[value], value))


def _built_shapes(kind: type, config: Any, changes: Mapping[str, Any]) -> Shapes | None:
    """Return the shapes of a model of the class, built without memory; None if it cannot be built so."""
    try:
        with preserved(), torch.device("meta"):
            return _shapes_of(kind(_changed(config, changes)))
    except Exception:  # a value that the class refuses
        return None


def _changed(config: Any, changes: Mapping[str, Any]) -> Any:
    """Return a copy of a configuration with other values, made anew so that it checks them."""
    values = {**config.to_dict(), **{name: value for name, value in changes.items() if value is not None}}
    made = type(config).from_dict(values) if hasattr(type(config), "from_dict") else copy.deepcopy(config)
    for name, value in changes.items():
        if getattr(made, name, None) != value:
            setattr(made, name, value)
    for name in ("_attn_implementation", "dtype"):
        if hasattr(config, name):
            setattr(made, name, getattr(config, name))
    return made
