"""`register_channel_rule`, the table of channel rules, and `Call`, which a rule takes.

A rule gets one call of an operation, with tensors as labelled shapes and all else as it is. An operation without a rule
freezes the channels of its tensors; none is taken to be element-wise by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import fx, nn

from dst_analyze.channels.labels import LabelSpace, Reason, along, collapsed, spread, varying
from dst_analyze.errors import ModelError, OptionError
from dst_analyze.model.families import family_of_call, family_of_layer
from dst_analyze.model.tracing.registered import keep_whole
from dst_analyze.model.user_errors import describe_value, source_of, user_code


@dataclass(frozen=True)
class LabelledTensor:
    """A tensor in a channel rule: its shape, and the families of labels along its axes.

    ``constant`` is True if it depends on parameters alone, not on the model's inputs.
    """

    shape: tuple[int, ...]
    families: tuple[torch.Tensor, ...] = ()
    constant: bool = False

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def along(self, dim: int) -> list[torch.Tensor]:
        """Return the families that vary along an axis."""
        return [family for family in self.families if dim % self.ndim in varying(family)]


@dataclass(frozen=True)
class Call:
    """A node of the graph, as a channel rule gets it."""

    space: LabelSpace
    node: fx.Node
    module: nn.Module | None  # of a call_module node
    args: tuple[Any, ...]  # tensors are `LabelledTensor`s, everything else is the example's value
    kwargs: dict[str, Any]
    result: Any  # the example's value; a rule may use its shapes
    op: str
    place: str  # the module in which the call is made, and where its forward is written
    run: Callable[[tuple[Any, ...], dict[str, Any]], Any]  # runs the operation, on labels
    indices: Callable[[], tuple[Any, ...]]  # returns the arguments with the example's tensors

    # Arguments.

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument of the call by its position, else by its name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    @property
    def acts(self) -> list[LabelledTensor]:
        """All tensors among the arguments of the call."""
        found: list[LabelledTensor] = []
        collect(self.args, found)
        collect(self.kwargs, found)
        return found

    @property
    def x(self) -> LabelledTensor:
        """The first tensor among the arguments."""
        return self.acts[0]

    # Results.

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the call's result."""
        return tuple(self.result.shape)

    def out(self, families: Iterable[torch.Tensor], constant: bool | None = None) -> LabelledTensor:
        """Return a result of the call's shape with these families."""
        constant = all(act.constant for act in self.acts) if constant is None else constant
        return LabelledTensor(self.shape, tuple(collapsed(family) for family in families), constant)

    def on_labels(self, labels: torch.Tensor) -> Any:
        """Return the operation's result for labels in place of its first tensor."""
        done = False

        def swap(value: Any) -> Any:
            nonlocal done
            if isinstance(value, LabelledTensor) and not done:
                done = True
                return labels
            return value

        args = mapped_acts(self.args, swap)
        return self.run(args, mapped_acts(self.kwargs, swap))

    # Findings.

    def reason(self, why: str) -> Reason:
        """Return a reason that names this call and its place in the source."""
        return Reason(why, self.op, self.node.name, self.place)

    def freeze(self, families: Iterable[torch.Tensor], why: str) -> None:
        """Keep the channels of these families, for the reason given."""
        for family in families:
            self.space.freeze(family, self.reason(why))

    def without(self, act: LabelledTensor, dims: Iterable[int], why: str) -> list[torch.Tensor]:
        """Freeze the families that vary along ``dims``, and return the others."""
        gone = {dim % act.ndim for dim in dims}
        self.freeze((family for family in act.families if gone & set(varying(family))), why)
        return [family for family in act.families if not gone & set(varying(family))]

    def only_along(self, family: torch.Tensor, dim: int) -> torch.Tensor:
        """Join a family along every axis but one, and return its labels along that one."""
        dim %= family.ndim
        self.space.join_along(family, (d for d in range(family.ndim) if d != dim), self.reason("fixed along an axis"))
        return along(family, dim)

    def inexact(self, act: LabelledTensor, dims: Iterable[int], why: str) -> None:
        """Note that removing channels along these axes changes the outputs."""
        dims = [dim % act.ndim for dim in dims]
        for family in act.families:
            self.space.inexact(family, dims, self.reason(why))

    # Parameters.

    def parameter(self, name: str, dims: Sequence[int], families: int = 1) -> LabelledTensor | None:
        """Return a parameter of the call's module with labels along ``dims``; other axes keep their size."""
        assert self.module is not None
        tensor = getattr(self.module, name, None)
        if tensor is None:
            return None
        shape, full = tuple(tensor.shape), self.names[name]
        labels = [
            spread(self.space.of(full, dim, shape[dim], k), dim, shape)
            for dim in dims
            if shape[dim] > 1
            for k in range(families)
        ]
        return LabelledTensor(shape, tuple(labels), constant=True)

    @property
    def names(self) -> dict[str, str]:
        """The names in the graph of the module's parameters and buffers; tied ones have the same."""
        return self.node.meta["slim_names"]  # type: ignore[no-any-return]


def collect(value: Any, found: list[LabelledTensor]) -> None:
    """Append all labelled tensors in a nested value to ``found``."""
    if isinstance(value, LabelledTensor):
        found.append(value)
    elif isinstance(value, list | tuple):
        for item in value:
            collect(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            collect(item, found)


def mapped_acts(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a nested value with every leaf changed."""
    if isinstance(value, list | tuple) and not isinstance(value, LabelledTensor):
        return type(value)(mapped_acts(item, change) for item in value) if type(value) in (list, tuple) else value
    if isinstance(value, dict):
        return {key: mapped_acts(item, change) for key, item in value.items()}
    return change(value)


def place_of(node: fx.Node, root: type[nn.Module]) -> str:
    """Return the module that makes a call, and where its forward is written (unless in torch)."""
    stack = [("", root), *node.meta.get("nn_module_stack", {}).values()]
    if node.op == "call_module" and len(stack) > 1:  # the last is the called layer, the one before it the caller
        stack.pop()
    own = [(path, kind) for path, kind in stack if not str(getattr(kind, "__module__", "")).startswith("torch.")]
    if not own:
        return str(node.target if node.op == "call_module" else stack[-1][0])
    path, kind = own[-1]
    written = source_of(kind) if isinstance(kind, type) else ""
    return f"{path} ({written})" if path and written else written or str(path)


def frozen_module(call: Call) -> Any:
    """Freeze the channels of all tensors that a module takes, and return a result without channels."""
    call.freeze((family for act in call.acts for family in act.families), f"inside a {call.op}")
    return unlabelled(call.result)


def unlabelled(result: Any) -> Any:
    """Return a result of the same shape in which no axis has channels."""
    if isinstance(result, torch.Tensor):
        return LabelledTensor(tuple(result.shape))
    if isinstance(result, tuple | list):
        return tuple(unlabelled(item) for item in result)
    if isinstance(result, dict):
        return {key: unlabelled(item) for key, item in result.items()}
    return result


# --- the table --------------------------------------------------------------------------------------------------

ChannelRule = Callable[[Call], Any]


class Effect(Enum):
    """What the exactness proof may assume of an operation: all but UNKNOWN hide no sum over channels.

    If an element depends on others along an axis, the rule calls `Call.inexact`.
    """

    UNKNOWN = auto()  # nothing, as for users' rules: it may hide a sum, and may mix all values
    NO_HIDDEN_SUM = auto()  # nothing else
    ELEMENTWISE = auto()  # an element of the result depends on the elements at its place
    PER_CHANNEL = auto()  # ... on all elements of its channel
    REARRANGES = auto()  # elements are moved, not computed: the operation can be run on marks


_BY_NAME: dict[str, ChannelRule] = {}
_EFFECTS: dict[ChannelRule, Effect] = {}
# Rules are found by name for functions of these packages only: a user's function may have the same name.
_TORCH = ("torch", "_operator", "builtins", "math")


def rules(*names: str, effect: Effect | None = None) -> Callable[[ChannelRule], ChannelRule]:
    """Return a decorator that enters a rule for torch's functions, methods and operators of these names.

    The rules for families of layers, and for the functions that compute the same, are named in `model/families.py`.
    """

    def enter(rule: ChannelRule) -> ChannelRule:
        _BY_NAME.update(dict.fromkeys(names, rule))
        _set_effect(rule, effect)
        return rule

    return enter


def family_rule(effect: Effect) -> Callable[[ChannelRule], ChannelRule]:
    """Return a decorator that declares the effect of a rule named in `model/families.py`."""

    def declare(rule: ChannelRule) -> ChannelRule:
        _set_effect(rule, effect)
        return rule

    return declare


def _set_effect(rule: ChannelRule, effect: Effect | None) -> None:
    """Set the effect of a rule, which is the same under all its names; None changes nothing."""
    if effect is not None and _EFFECTS.setdefault(rule, effect) is not effect:
        raise ValueError(f"{rule} has two effects: {_EFFECTS[rule]} and {effect}")


def effect_of(rule: ChannelRule | None) -> Effect:
    """Return the declared effect of a rule; UNKNOWN if it has none."""
    return Effect.UNKNOWN if rule is None else _EFFECTS.get(rule, Effect.UNKNOWN)


def rule_for(node: fx.Node, module: nn.Module | None) -> ChannelRule | None:
    """Return the rule for a call, None if there is none; registered rules come before built-in ones."""
    if module is not None:
        kinds = type(module).__mro__
        users = next((_REGISTERED[kind] for kind in kinds if kind in _REGISTERED), None)
        return _resolved(users) if users is not None else _layer_rule(type(module))
    if node.op == "call_method":
        return _named(_plain(str(node.target)))
    if node.target in _REGISTERED:
        return _resolved(_REGISTERED[node.target])
    home = getattr(node.target, "__module__", None) or "torch"
    return _named(op_name(node, None)) if home.partition(".")[0] in _TORCH else None


def _named(name: str) -> ChannelRule | None:
    if name in _REGISTERED:
        return _resolved(_REGISTERED[name])
    family = family_of_call(None, name)
    return family.channels.find(layer=False) if family is not None else _BY_NAME.get(name)


def _layer_rule(kind: type[nn.Module]) -> ChannelRule | None:
    family = family_of_layer(kind)
    return family.channels.find(layer=True) if family is not None else None


# --- registered rules -------------------------------------------------------------------------------------------

# By function, module class or name: a rule, or the torch.nn class whose rule is used.
_REGISTERED: dict[Any, ChannelRule | type[nn.Module]] = {}
_FITS: dict[type[nn.Module], Callable[[Any], None]] = {}


def register_channel_rule(
    op: Callable[..., Any] | type[nn.Module] | str,
    rule: ChannelRule | type[nn.Module],
    *,
    fit: Callable[[Any], None] | None = None,
) -> None:
    """Register how channels pass through an operation, so that the layers around it can be narrowed.

    Args:
        op: A function, a module's class, or the name of a tensor method. Modules of a registered class are one node
            of the graph from now on.
        rule: Called with a `Call`; joins and freezes labels on ``call.space`` and returns a `LabelledTensor` for the
            call's result, or a tuple of them. Or a class of torch.nn, whose rule is used.
        fit: For a module's class: called with a module after its tensors were cut, to update the sizes that it stores
            (such as ``in_features``).

    Raises:
        OptionError: ``rule`` is a class without a channel rule; raised when the operation is met.

    Example:
        >>> import dst_analyze, torch
        >>> class Clip(torch.nn.Module):
        ...     def forward(self, x):
        ...         return torch.from_numpy(x.detach().numpy().clip(0, 1))  # torch does not see this
        >>> dst_analyze.register_channel_rule(Clip, lambda call: call.out(call.x.families))
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), Clip(), torch.nn.Linear(8, 2))
        >>> coupling = dst_analyze.couple_channels(dst_analyze.trace_model(model, torch.randn(2, 4)))
        >>> [group.name for group in coupling.removable]
        ['0']
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", repr(op))
    _REGISTERED[op] = rule if isinstance(rule, type) else _checked(name, rule)
    if isinstance(op, type) and issubclass(op, nn.Module):
        if not op.__module__.startswith("torch."):
            keep_whole(op)
        if fit is not None:
            _FITS[op] = fit


def fit_of(module: nn.Module) -> Callable[[Any], None] | None:
    """Return the registered function that updates a module's stored sizes; None if there is none."""
    return next((_FITS[kind] for kind in type(module).__mro__ if kind in _FITS), None)


def _resolved(rule: ChannelRule | type[nn.Module]) -> ChannelRule:
    """Return a registered rule, or the rule of the torch.nn class that was registered in its place."""
    if not isinstance(rule, type):
        return rule
    known = _layer_rule(rule)
    if known is None:
        raise OptionError(
            f"there is no channel rule for {rule.__name__}, which is registered as the rule of another class",
            place="register_channel_rule",
            hint="name a layer of torch.nn such as nn.Linear or nn.ReLU, or write a rule",
        )
    return known


def _checked(name: str, rule: ChannelRule) -> ChannelRule:
    """Return a user's rule with checks: its errors name the rule, and its result must fit the call's."""

    def checked(call: Call) -> Any:
        with user_code(f"the channel rule for {name}"):
            found = rule(call)
        wanted, given = (_shapes(value) for value in (unlabelled(call.result), found))
        if wanted != given:
            raise ModelError(
                f"the channel rule for {name} returned {given or describe_value(found)}, "
                f"where the result has shapes {wanted}",
                place=call.place,
                hint="return call.out(families), or a tuple of LabelledTensors for several results",
            )
        return found

    return checked


def _shapes(value: Any) -> list[tuple[int, ...]]:
    found: list[LabelledTensor] = []
    collect(value, found)
    return [act.shape for act in found]


# --- names ------------------------------------------------------------------------------------------------------


def op_name(node: fx.Node, module: nn.Module | None) -> str:
    """Return an operation's name in the table and in reasons."""
    if module is not None:
        return type(module).__name__
    return _plain(str(getattr(node.target, "__name__", node.target)))


def _plain(name: str) -> str:
    """Return a name without the mark of an operation in place, which has the same rule."""
    name = _INPLACE_OPERATORS.get(name, name)
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


_INPLACE_OPERATORS = {
    "iadd": "add",
    "isub": "sub",
    "imul": "mul",
    "itruediv": "truediv",
    "ipow": "pow",
    "imatmul": "matmul",
    "and_": "bitwise_and",
    "or_": "bitwise_or",
    "__and__": "bitwise_and",
    "__or__": "bitwise_or",
}
