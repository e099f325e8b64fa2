"""The parts of a ranking that a plan uses: labels, ranks and usable trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dst_analyze.errors import DataError
from dst_analyze.ranking.input.trial_matrix import USED
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.verdict import NEEDED, NOT_MEASURED, REDUNDANT, UNCLEAR
from dst_analyze.run.record import TrialKey

MIXED = "mixed"
"""The label of a group whose layers have different labels."""
_END = 1 / 3  # of the ranking: unclear layers at its ends count as ranked first or last

_REMEDIES = {
    "unpruned": ("left nearly all weights", "give stronger --alphas or more --steps"),
    "collapsed": ("pruned everything", "give weaker --alphas"),
    "diverged": ("diverged", "give a lower --lr"),
    "failed": ("failed", "repeat them with --retry-failed"),
}


@dataclass(frozen=True)
class Ranked:
    """The labels and ranks of layers; ``used`` are the usable trials, ``left_out`` counts the others by status."""

    labels: Mapping[str, str]
    ranks: Mapping[str, float]
    used: frozenset[TrialKey]
    left_out: Mapping[str, int]

    def labelled(self, *labels: str) -> tuple[str, ...]:
        """Return the layers that have one of these labels."""
        return tuple(layer for layer, label in self.labels.items() if label in labels)

    def label_of(self, layers: Sequence[str]) -> str:
        """Return the label that all of these layers have, else "mixed"; empty if none of them is ranked."""
        found = dict.fromkeys(self.labels[layer] for layer in layers if layer in self.labels)
        return next(iter(found)) if len(found) == 1 else MIXED if found else ""

    def side_of(self, layer: str) -> int:
        """Return 1 for a layer that the ranking says can shrink, -1 for one it says is needed, else 0.

        Without a clear label the first third of the ranks counts as the one, the last third as the other.
        """
        label, rank, count = self.labels.get(layer), self.ranks.get(layer), len(self.ranks)
        if label in (REDUNDANT, NEEDED):
            return 1 if label == REDUNDANT else -1
        if label != UNCLEAR or rank is None:
            return 0
        return (rank <= _END * count) - (rank > (1 - _END) * count)

    def no_evidence(self) -> DataError:
        """Return the error that says why no trial can be used, and what to change."""
        counts = sorted(self.left_out.items(), key=lambda pair: -pair[1])
        said = ", ".join(f"{count} {_REMEDIES.get(status, (status,))[0]}" for status, count in counts)
        hints = [_REMEDIES[status][1] for status, _ in counts if status in _REMEDIES]
        return DataError(
            f"no trial can be used as evidence ({said or 'there are none'})",
            hint="; ".join(hints) or "run the sweep first",
        )


def ranked_layers(ranking: Ranking) -> Ranked:
    """Return the parts of a ranking that a plan uses."""
    table, trials = ranking.table, ranking.trials[~ranking.trials["control"].astype(bool)]
    labels = {str(layer): str(label) for layer, label in zip(table["layer"], table["label"], strict=True)}
    usable = trials["status"] == USED
    return Ranked(
        labels=labels,
        ranks={
            str(layer): float(rank) for layer, rank in zip(table["layer"], table["rank"], strict=True) if rank == rank
        },
        used=frozenset(
            TrialKey(float(alpha), int(seed))
            for alpha, seed in zip(trials["alpha"][usable], trials["seed"][usable], strict=True)
        ),
        left_out={str(status): int(count) for status, count in trials["status"][~usable].value_counts().items()},
    )


def unclear_layers(ranked: Ranked) -> tuple[str, ...]:
    """Return the layers that the ranking calls unclear or could not measure."""
    return ranked.labelled(UNCLEAR, NOT_MEASURED)


def needed_layers(ranked: Ranked) -> tuple[str, ...]:
    """Return the layers that the ranking calls needed."""
    return ranked.labelled(NEEDED)
