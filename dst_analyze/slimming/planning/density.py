"""The evidence of a sweep for each group of channels: its density, seen from the layers that make and read it.

A channel is made by a row of some weights and read by columns of others, and both show how much it is needed. The
density of a group is the geometric mean of the share left in the weights that make it and in those that read it, each
counting by how many weights it has, and then over the trials (alphas and seeds), so that a group counts as thin only
where it is thin everywhere.

Both ends count by their weights because a first convolution of one input channel, or an output layer of ten classes,
is hardly ever pruned, whatever reads or feeds it (docs/experiments/slim-nets.md, planted width).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dst_analyze.channels.groups import Coupling, Group
from dst_analyze.run.record import SweepRecord, TrialKey, last_quarter

Values = npt.NDArray[np.float64]
Masks = Mapping[str, npt.NDArray[np.bool_] | Values]
"""The remaining share of each weight by layer: 0 or 1, or a layer's share where single weights are unknown."""

Ends = Mapping[str, tuple[Values, int]]
"""By role ("produces", "reads"): the density of each unit seen from that end, and the end's number of weights."""

_FLOOR = 1e-3
"""Densities below this are clamped: such a group is practically empty."""


@dataclass(frozen=True)
class GroupEvidence:
    """The densities of a group (``density``), of each unit (``units``) and of its units from the densest on.

    Trials that start from other weights number their units differently, so densities are averaged by rank:
    ``sorted_units`` is the mean over trials of the sorted densities. ``ends`` has, by role ("produces", "reads"), the
    density seen from that end and the end's share of the weights.
    """

    density: float
    units: Values
    sorted_units: Values
    ends: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def equal(cls, width: int, density: float = 1.0) -> GroupEvidence:
        """Return evidence of the same density for every unit."""
        return cls(density, np.full(width, density), np.full(width, density))


Evidence = Mapping[str, GroupEvidence]


def from_masks(coupling: Coupling, parameters: Mapping[str, str], trials: Iterable[Masks]) -> dict[str, GroupEvidence]:
    """Return evidence from final masks; ``parameters`` maps each layer to the parameter that its mask is for."""
    groups = coupling.removable
    seen: dict[str, list[Ends]] = {group.name: [] for group in groups}
    for masks in trials:
        by_parameter = {parameters[layer]: mask for layer, mask in masks.items()}
        for group in groups:
            ends = _unit_densities(coupling, group, by_parameter)
            if ends:
                seen[group.name].append(ends)
    return {group.name: _summed_up(group, seen[group.name]) for group in groups}


def from_ratios(coupling: Coupling, ratios: Sequence[Mapping[str, float]]) -> dict[str, GroupEvidence]:
    """Return evidence from layers' remaining ratios, one mapping per trial, with equal weight for both ends."""

    def density(group: Group, trial: Mapping[str, float]) -> float | None:
        ends = [[trial[layer] for layer in group.layers(role) if layer in trial] for role in ("produces", "reads")]
        both = _both_ends([(np.asarray(np.mean(end)), 1) for end in ends if end])
        return None if both is None else float(both)

    found = {}
    for group in coupling.removable:
        trials = [value for trial in ratios if (value := density(group, trial)) is not None]
        found[group.name] = GroupEvidence.equal(group.width, _typical(np.array(trials))) if trials else _unknown(group)
    return found


def late_ratios(record: SweepRecord, what: str) -> dict[TrialKey, dict[str, float]]:
    """Return each layer's "remaining" or "null" ratio in each trial: the median of the last quarter of training."""
    frame = last_quarter(record.frame[~record.frame["control"]])
    return {
        TrialKey(float(alpha), int(seed)): trial.groupby("layer", sort=False)[what].median().to_dict()
        for (alpha, seed), trial in frame.groupby(["alpha", "seed"])
    }


def _unit_densities(coupling: Coupling, group: Group, masks: Masks) -> Ends:
    """Return the density of each unit in one trial, seen from each end; nothing where no mask touches the group.

    In a unit's row, columns count in proportion to what is left of them, and the other way round. With a plain share, a
    layer with many dead units would make the layers before and after it look redundant, too.
    """
    sums = {role: np.zeros((2, group.width)) for role in ("produces", "reads")}
    weights = dict.fromkeys(sums, 0)
    for member in group.members:
        mask = masks.get(member.name)
        if mask is None or member.role not in sums:
            continue
        kept = np.moveaxis(mask, member.dim, 0).reshape(mask.shape[member.dim], -1)
        share = kept.mean(0)
        sums[member.role][0] += coupling.by_unit(group, member, kept @ share)
        sums[member.role][1] += coupling.by_unit(group, member, np.full(len(kept), max(share.sum(), _FLOOR)))
        weights[member.role] += mask.size
    return {role: (left / whole, weights[role]) for role, (left, whole) in sums.items() if whole.all()}


def _both_ends(ends: Sequence[tuple[Values, int]]) -> Values | None:
    """Return the geometric mean of the densities at both ends, weighted by their weights; None without any.

    A unit that is empty at one end is dead, whatever the density at the other.
    """
    if not ends:
        return None
    shares = np.maximum([end for end, _ in ends], _FLOOR)
    mean = np.exp(np.average(np.log(shares), axis=0, weights=[weights for _, weights in ends]))
    return np.where(shares.min(axis=0) <= _FLOOR, _FLOOR, mean)


def _typical(values: Values) -> float:
    return float(np.exp(np.log(np.maximum(values, _FLOOR)).mean()))


def _summed_up(group: Group, trials: Sequence[Ends]) -> GroupEvidence:
    both = [units for trial in trials if (units := _both_ends(list(trial.values()))) is not None]
    if not both:
        return _unknown(group)
    units = np.stack(both)
    total = sum(weights for _, weights in trials[0].values())
    return GroupEvidence(
        density=_typical(units.mean(1)),
        units=np.exp(np.log(units).mean(0)),
        sorted_units=np.exp(np.log(-np.sort(-units, axis=1)).mean(0)),
        ends={
            role: (_typical(np.array([trial[role][0].mean() for trial in trials])), weights / total)
            for role, (_, weights) in trials[0].items()
        },
    )


def _unknown(group: Group) -> GroupEvidence:
    """Return full density for a group that was not measured, so that it keeps its width."""
    return GroupEvidence.equal(group.width)
