"""Values of tensors on torch's `meta` device that need neither weights nor data: positions, masks, constants.

Code such as Hugging Face's looks at them (``if (position_ids.diff() != 1).any()``), which fails on `meta`, although
they follow from sizes alone. So while a model on `meta` runs, each tensor that is made of nothing but numbers has a
twin on the CPU, and what is made of such tensors has one, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

_LARGEST = 1 << 20
"""Values of a tensor that has a twin, at most."""
_UNFILLED = frozenset(("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"))
_READS = frozenset(("_local_scalar_dense", "equal", "is_nonzero"))


def is_meta(model: nn.Module) -> bool:
    """True if parameters of the model have no values."""
    return any(parameter.is_meta for parameter in model.parameters())


class MetaValues(TorchDispatchMode):
    """Answer reads of tensors on `meta` whose values are known; others raise, as without it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._twins: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        unknown = any(tensor.is_meta and tensor not in self._twins for tensor in given)
        name = func._schema.name.removeprefix("aten::")
        if unknown or name in _UNFILLED or torch.Tag.nondeterministic_seeded in func.tags:
            if func._schema.is_mutable:
                self._forget(_tensors((args[:1], kwargs.get("out"))))
            return func(*args, **kwargs)
        if not any(tensor.is_meta for tensor in given) and not _makes_meta(kwargs):
            return func(*args, **kwargs)
        if name in _READS:
            return func(*self._known((args, kwargs))[0])
        return self._followed(func, args, kwargs)

    def _followed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation on `meta` and, if its result is small, on the twins."""
        dynamic = torch.Tag.dynamic_output_shape in func.tags  # as `nonzero`, which `meta` cannot tell the size of
        result = None if dynamic else func(*args, **kwargs)
        if sum(tensor.numel() for tensor in _tensors((args, kwargs, result))) > _LARGEST:
            self._forget(_tensors((args[:1], kwargs.get("out"))) if func._schema.is_mutable else [])
            return func(*args, **kwargs) if dynamic else result
        known_args, known_kwargs = self._known((args, kwargs))
        if _makes_meta(kwargs):
            known_kwargs["device"] = torch.device("cpu")
        twin = func(*known_args, **known_kwargs)
        if dynamic:
            result = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf, twin)
        for ours, theirs in zip(_tensors(result), _tensors(twin), strict=True):
            if ours.is_meta:
                self._twins[ours] = theirs
        return result

    def _known(self, values: Any) -> Any:
        return tree_map(lambda leaf: self._twins.get(leaf, leaf) if isinstance(leaf, torch.Tensor) else leaf, values)

    def _forget(self, changed: list[torch.Tensor]) -> None:
        """Forget the twins of tensors that something unknown was written into, and those of their views."""
        stale = {_storage(self._twins[tensor]) for tensor in changed if tensor in self._twins}
        for tensor in [tensor for tensor, twin in self._twins.items() if _storage(twin) in stale]:
            del self._twins[tensor]


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _makes_meta(kwargs: Any) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "meta"


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
