"""What the sweep says of each group of channels: how much of it remained, as seen from both its ends.

A channel is made by a row of some weights and read by columns of others; it is as needed as the two together say. The
density of a group is the geometric mean of the share left in the weights that make it and in those that read it, each
counting by how many weights it has, and then over the trials (alphas and seeds), so that a group counts as thin only
where it is thin everywhere.

Counting by weights: a first convolution of one input channel or an output layer of ten classes is hardly ever pruned,
whatever reads or feeds it. Counted alike, width planted before such a layer (128 units for 32) was cut to 60 only; by
weights, to 44 (experiments/planted_width.py).
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
"""By layer: what is left of each weight, all or nothing; a share, where no more is known."""

Ends = Mapping[str, tuple[Values, int]]
"""By role ("produces", "reads"): the density of each unit seen from there, and the number of weights that say so."""

_FLOOR = 1e-3
"""Densities are told apart down to this: below it a group is as good as empty."""


@dataclass(frozen=True)
class GroupEvidence:
    """``density`` of the group; ``units``: of each unit; ``sorted_units``: of its densest unit, the next one, ...

    Trials that start from other weights number their units otherwise, so what a unit is like is known best by its place
    in the order: ``sorted_units`` is the mean over trials of the sorted densities. ``ends`` has, by role ("produces",
    "reads"), the density seen from that end and how much the end counts; the counts add up to 1.
    """

    density: float
    units: Values
    sorted_units: Values
    ends: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def equal(cls, width: int, density: float = 1.0) -> GroupEvidence:
        return cls(density, np.full(width, density), np.full(width, density))


Evidence = Mapping[str, GroupEvidence]


def from_masks(coupling: Coupling, parameters: Mapping[str, str], trials: Iterable[Masks]) -> dict[str, GroupEvidence]:
    """Evidence from final masks; ``parameters`` maps a layer to the parameter its mask is of."""
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
    """Evidence from layers' remaining ratios, one mapping per trial, both ends counting alike: how the null is read."""

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
    """``what`` was read of each layer in each trial ("remaining" or "null"): the median over the end of training."""
    frame = last_quarter(record.frame[~record.frame["control"]])
    return {
        TrialKey(float(alpha), int(seed)): trial.groupby("layer", sort=False)[what].median().to_dict()
        for (alpha, seed), trial in frame.groupby(["alpha", "seed"])
    }


def _unit_densities(coupling: Coupling, group: Group, masks: Masks) -> Ends:
    """Return the density of each unit in one trial, seen from each end; nothing where no mask touches the group.

    The share of a unit's row is taken over columns in proportion to what is left of them, and the other way round. A
    unit that reads from a layer most of whose units are dead is not thin for that, nor is the layer before one with
    many dead rows: a plain share would call both sides of a redundant layer redundant.
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
    """The geometric mean of what both ends say, each counting by its weights; None if neither says anything.

    What one end has nothing left of is dead, whatever the other says.
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
    """Nothing was measured on either side: nothing is taken away."""
    return GroupEvidence.equal(group.width)
