"""Joins of labels where tensors meet: element by element after broadcasting, or in a contraction."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import torch

from dst_analyze.channels.labels import Granularity, collapsed, varying
from dst_analyze.channels.rule_call import Call, LabelledTensor


def join_elementwise(call: Call, acts: Sequence[LabelledTensor], shape: Sequence[int]) -> LabelledTensor:
    """Return the labels of a result computed element by element from ``acts``, broadcast to ``shape``."""
    acts = [_aligned(act, len(shape)) for act in acts]
    families = []
    for cluster in _clusters(acts):
        families.extend(_join_cluster(call, acts, cluster))
    wide = tuple(collapsed(family.expand(tuple(shape))) for family in families)
    return LabelledTensor(tuple(shape), wide, all(act.constant for act in acts))


def contract(
    call: Call, operands: Sequence[tuple[LabelledTensor, str]], output: str, *, weights: bool = True
) -> LabelledTensor:
    """Return the labels of an einsum: letters of several operands are joined, summed ones vanish.

    A family that varies along a summed letter and along one that stays (a head's channels, and the heads) is joined
    along the summed one: heads are removed whole.
    """
    letters = "".join(dict.fromkeys("".join(own for _, own in operands)))
    spread = [LabelledTensor(*_spread(act, own, letters), act.constant) for act, own in operands]
    sizes = [max(act.shape[i] for act in spread) for i in range(len(letters))]
    summed = {i for i, letter in enumerate(letters) if letter not in output}
    if weights:
        _note_roles(call, spread, summed)
    met = join_elementwise(call, spread, sizes)
    first: Any = tuple(0 if i in summed else slice(None) for i in range(len(letters)))
    left = [letter for i, letter in enumerate(letters) if i not in summed]
    families = []
    for family in met.families:
        dims = set(varying(family))
        if dims & summed and dims - summed:
            call.space.prefer(family, summed)
        if dims - summed or not dims:
            families.append(family[first].permute([left.index(letter) for letter in output]))
    return LabelledTensor(
        tuple(sizes[letters.index(letter)] for letter in output), tuple(map(collapsed, families)), met.constant
    )


def parse_einsum(equation: Any, axes: Sequence[int]) -> tuple[list[str], str] | None:
    """Return the letters of an einsum's operands and of its result; None if the equation is unsupported.

    An ellipsis becomes additional letters, aligned from the right. Without an arrow the result is as in torch: the
    ellipsis, then every letter that occurs once, in alphabetical order.

    Args:
        equation: The equation as the call has it.
        axes: The number of axes of each operand.
    """
    if not isinstance(equation, str):
        return None
    sides, arrow, output = equation.replace(" ", "").partition("->")
    inputs = sides.split(",")
    if len(inputs) != len(axes):
        return None
    hidden = [
        count - len(own.replace("...", "")) if "..." in own else 0 for own, count in zip(inputs, axes, strict=True)
    ]
    free = [letter for letter in string.ascii_letters if letter not in sides]
    dots = "".join(free[: max(hidden)])
    if not arrow:
        output = "..." * any(hidden) + "".join(sorted(k for k in set(sides) - {".", ","} if sides.count(k) == 1))
    found = [own.replace("...", dots[len(dots) - count :]) for own, count in zip(inputs, hidden, strict=True)]
    output = output.replace("...", dots)
    once = all(len(set(own)) == len(own) for own in (*found, output)) and "." not in "".join(found)
    return (found, output) if once and set(dots) <= set(output) else None


def _note_roles(call: Call, acts: Sequence[LabelledTensor], summed: set[int]) -> None:
    """Note that a weight reads along its summed axes and produces along those that stay."""
    if all(act.constant for act in acts):  # a product of two weights, as in LoRA: the last is applied first
        for act in acts:
            for family in (f for f in act.families if set(varying(f)) & summed):
                call.space.role("produces" if act is acts[-1] else "reads", family)
        return
    for act in acts:
        for family in act.families if act.constant else ():
            call.space.role("reads" if set(varying(family)) & summed else "produces", family)


def _spread(act: LabelledTensor, own: str, letters: str) -> tuple[tuple[int, ...], tuple[torch.Tensor, ...]]:
    order = [own.index(letter) for letter in letters if letter in own]
    shape = tuple(act.shape[own.index(letter)] if letter in own else 1 for letter in letters)

    def placed(family: torch.Tensor) -> torch.Tensor:
        family = family.permute(order)
        for i, letter in enumerate(letters):
            if letter not in own:
                family = family.unsqueeze(i)
        return family

    return shape, tuple(placed(family) for family in act.families)


def _aligned(act: LabelledTensor, ndim: int) -> LabelledTensor:
    missing = (1,) * (ndim - act.ndim)
    families = tuple(family[(None,) * len(missing)] for family in act.families)
    return LabelledTensor((*missing, *act.shape), families, act.constant)


def _clusters(acts: Sequence[LabelledTensor]) -> list[list[list[torch.Tensor]]]:
    """Return clusters of families that share an axis; each has a list of families per act.

    Of families along no axis, which an axis of length 1 leaves, each label is kept once: they never meet, and would
    double wherever a tensor meets another that was made from it.
    """
    clusters: list[tuple[set[int], list[list[torch.Tensor]]]] = []
    single = {0}
    for index, act in enumerate(acts):
        for family in act.families:
            dims = set(varying(family))
            if not dims:
                label = int(family.flatten()[0])
                if label in single:
                    continue
                single.add(label)
            mine: tuple[set[int], list[list[torch.Tensor]]] = (dims, [[] for _ in acts])
            mine[1][index].append(family)
            for other in [other for other in clusters if other[0] & dims]:
                clusters.remove(other)
                mine = (mine[0] | other[0], [a + b for a, b in zip(other[1], mine[1], strict=True)])
            clusters.append(mine)
    return [cluster for _, cluster in clusters]


def _join_cluster(call: Call, acts: Sequence[LabelledTensor], cluster: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    cluster = _whole_heads(call, acts, cluster)
    counts = {len(families) for families in cluster if families}
    if counts == {1}:
        return [_joined(call, acts, [families[0] if families else None for families in cluster])]
    same = {tuple(varying(family) for family in families) for families in cluster if families}
    if len(counts) == 1 and len(same) == 1:  # the same axes in all acts: families belong together in their order
        return [
            _joined(call, acts, [families[k] if families else None for families in cluster])
            for k in range(counts.pop())
        ]
    if len([families for families in cluster if families]) == 1:
        only = next(families for families in cluster if families)
        return [_joined(call, acts, [family if families else None for families in cluster]) for family in only]
    for families in cluster:
        call.freeze(families, "several channel axes meet in one")
    return []


def _whole_heads(
    call: Call, acts: Sequence[LabelledTensor], cluster: list[list[torch.Tensor]]
) -> list[list[torch.Tensor]]:
    """Return a cluster in which a scale per head and channel ([heads, 1, size]) keeps its family of heads only.

    Its other axes stay: where a family runs over heads and their channels, heads are removed whole.
    """
    wide = [set(varying(families[0])) for families in cluster if len(families) == 1]
    dims = max(wide, key=len, default=set())
    found = []
    for act, families in zip(acts, cluster, strict=True):
        own = [varying(family) for family in families]
        if len(families) > 1 and act.constant and all(len(one) == 1 and set(one) < dims for one in own):
            first = min(range(len(own)), key=own.__getitem__)
            if len(set(own)) == len(own):
                call.freeze(families[:first] + families[first + 1 :], "heads are removed whole")
                families = [families[first]]
        found.append(families)
    return found


def _joined(call: Call, acts: Sequence[LabelledTensor], families: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Return one family joined from one per act; an act without one is broadcast or fixed there."""
    present = [family for family in families if family is not None]
    dims = {dim for family in present for dim in varying(family)}
    widest = max(present, key=lambda family: len(varying(family)))
    for act, family in zip(acts, families, strict=True):
        if family is None or family is widest:
            continue
        if act.constant and _within_heads(family, widest) and _broadcast(act, family, widest):
            whole = tuple((widest, widest.narrow(dim, 0, 1)) for dim in varying(family))
            call.space.choose(
                Granularity(whole, (family,), call.reason("shared by all heads")),
                Granularity(((widest, family),), (), call.reason("is combined with a tensor of fixed size")),
            )
        else:
            call.space.join(widest, family, call.reason("is combined with a tensor of fixed size"))
    for act in (act for act, family in zip(acts, families, strict=True) if family is None):
        fixed = {dim for dim in dims if act.shape[dim] > 1}
        if fixed and dims <= fixed:
            for each in present:
                call.space.freeze(each, call.reason("is combined with a tensor of fixed size"))
        elif fixed:
            call.space.join_along(widest, fixed, call.reason("is combined with a tensor of fixed size"))
    return widest


def _broadcast(act: LabelledTensor, family: torch.Tensor, widest: torch.Tensor) -> bool:
    """True if a tensor has length 1 along the axes along which only the widest family varies."""
    return all(act.shape[dim] == 1 for dim in set(varying(widest)) - set(varying(family)))


def _within_heads(family: torch.Tensor, widest: torch.Tensor) -> bool:
    """True if a weight or table varies along the inner of several axes only, so that all heads share it.

    Then either the same channels are removed from every head, or whole heads and the tensor stays. Heads are chosen, if
    they may be removed.
    """
    inner, all_ = set(varying(family)), set(varying(widest))
    return inner < all_ and max(all_) in inner
