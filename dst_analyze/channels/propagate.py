"""Propagation of labels: the graph is run on the example, with labels beside every tensor."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn

from dst_analyze.channels.labels import LabelSpace, Reason, spread
from dst_analyze.channels.rule_call import (
    Call,
    LabelledTensor,
    frozen_module,
    mapped_acts,
    op_name,
    place_of,
    rule_for,
    unlabelled,
)
from dst_analyze.channels.rules import elementwise, indexing, recurrent, shapes  # noqa: F401  (each enters rules for operations)
from dst_analyze.channels.tensors import canonical_names
from dst_analyze.errors import DstError
from dst_analyze.model.graph.symbolic import is_stochastic


class LabelRun(fx.Interpreter):
    """An interpreter that runs the example and computes the labels of every tensor."""

    def __init__(self, module: fx.GraphModule, opaque: set[str], root: type[nn.Module]) -> None:
        super().__init__(module)
        self.space = LabelSpace()
        self.labels: dict[fx.Node, Any] = {}
        self.numbers: dict[str, Any] = {}
        self._opaque, self._root = opaque, root
        self._names = canonical_names(module)

    def run_node(self, n: fx.Node) -> Any:
        args, _ = self.fetch_args_kwargs_from_env(n)
        result = super().run_node(n)
        self.labels[n] = self._labelled(n, result, lambda: tuple(args))
        for act in _acts(self.labels[n]):
            for family in act.families:
                self.space.grid(family)
        if isinstance(result, int | float) or (isinstance(result, tuple) and all(isinstance(i, int) for i in result)):
            self.numbers[n.name] = result
        return result

    def _labelled(self, n: fx.Node, result: Any, real: Callable[[], tuple[Any, ...]]) -> Any:
        if n.op == "placeholder":
            return unlabelled(result)
        if n.op == "get_attr":
            return self._parameter(str(n.target), result)
        if n.op == "output":
            for act in _acts(self._arguments(n)):
                for family in act.families:
                    self.space.freeze(family, Reason("an output of the model", "", n.name, ""))
            return None
        return self._label_call(n, result, real)

    def _parameter(self, target: str, tensor: Any) -> Any:
        if not torch.is_tensor(tensor):
            return tensor
        name, shape = self._names.get(target, target), tuple(tensor.shape)
        families = [spread(self.space.of(name, d, shape[d]), d, shape) for d in range(len(shape)) if shape[d] > 1]
        return LabelledTensor(shape, tuple(families), constant=True)

    def _label_call(self, n: fx.Node, result: Any, real: Callable[[], tuple[Any, ...]]) -> Any:
        args, kwargs = self._arguments(n)
        module = self.module.get_submodule(str(n.target)) if n.op == "call_module" else None
        call = Call(
            space=self.space,
            node=n,
            module=module,
            args=args,
            kwargs=kwargs,
            result=result,
            op=op_name(n, module),
            place=place_of(n, self._root),
            run=lambda a, k: self._rerun(n, a, k),
            indices=real,
        )
        if module is not None:
            tensors = dict([*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)])
            n.meta["slim_names"] = {
                name: self._names.get(f"{n.target}.{name}", f"{n.target}.{name}") for name in tensors
            }
            if n.target in self._opaque:
                return self._not_understood(call)
        elif (
            not any(act.families for act in call.acts)
            and n.target is not operator.getitem
            and call.op not in shapes.MAKING
        ):
            return _constant(unlabelled(result), all(act.constant for act in call.acts) and bool(call.acts))
        rule = rule_for(n, module)
        if rule is None and module is not None and _is_random_op(module, real(), result):
            return call.out(call.x.families)
        made = _acts(unlabelled(result))
        if not made and call.op != "setitem":
            return result  # a plain value, such as a size
        if any(0 in act.shape for act in (*call.acts, *made) if not (call.op in shapes.JOINING and act.shape == (0,))):
            return self._not_understood(call, "the example gives it an empty tensor")
        if rule is None:
            return self._not_understood(call)
        try:
            return rule(call)
        except (DstError, MemoryError):
            raise
        except Exception as error:  # freeze these channels rather than fail for the whole model
            return self._not_understood(call, f"an operation used in a way that is not understood: {error}")

    def _not_understood(self, call: Call, why: str = "an operation that is not understood") -> Any:
        call.freeze((family for act in call.acts for family in act.families), why)
        for name, tensor in call.module.named_parameters() if call.module is not None else ():
            full = self._names[f"{call.node.target}.{name}"]
            for dim in (dim for dim in range(tensor.ndim) if tensor.shape[dim] > 1):
                call.freeze([self.space.of(full, dim, tensor.shape[dim])], why)
        return frozen_module(call)

    def _arguments(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a node's arguments with tensors as `LabelledTensor`."""
        return self._filled(n.args), self._filled(n.kwargs)

    def _filled(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self.labels[value]
        if isinstance(value, tuple):
            return tuple(self._filled(item) for item in value)
        if isinstance(value, list):
            return [self._filled(item) for item in value]
        if isinstance(value, Mapping):
            return {key: self._filled(item) for key, item in value.items()}
        return value

    def _rerun(self, n: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the node's operation on labels; other tensors, which only give shapes, are empty ones."""

        def real(value: Any) -> Any:
            return torch.empty(1).expand(value.shape) if isinstance(value, LabelledTensor) else value

        args, kwargs = mapped_acts(args, real), mapped_acts(kwargs, real)
        return getattr(self, n.op)(n.target, args, kwargs)


def _acts(value: Any) -> list[LabelledTensor]:
    if isinstance(value, LabelledTensor):
        return [value]
    if isinstance(value, dict):
        return [act for item in value.values() for act in _acts(item)]
    if isinstance(value, list | tuple):
        return [act for item in value for act in _acts(item)]
    return []


def _constant(value: Any, constant: bool) -> Any:
    return mapped_acts(
        value, lambda leaf: LabelledTensor(leaf.shape, (), constant) if isinstance(leaf, LabelledTensor) else leaf
    )


def _is_random_op(module: nn.Module, args: tuple[Any, ...], result: Any) -> bool:
    """True for modules like stochastic depth: random in training, the identity in eval mode."""
    return (
        is_stochastic(module)
        and len(args) == 1
        and torch.is_tensor(args[0])
        and torch.is_tensor(result)
        and args[0].shape == result.shape
        and bool(torch.equal(args[0], result))
    )
