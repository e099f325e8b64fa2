"""The words of the report, each with its meaning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """A word and what it means."""

    word: str
    meaning: str

    @property
    def anchor(self) -> str:
        """The id of its entry on the page."""
        return f"term-{self.word.replace(' ', '-')}"


def term_named(word: str) -> Term:
    """Return the entry of a word."""
    return _BY_WORD[word]


GLOSSARY = tuple(
    Term(word, meaning)
    for word, meaning in (
        ("alive", "Of a row or column of a layer: at least one of its weights remains."),
        (
            "alpha",
            "How hard training is allowed to prune; the larger, the fewer weights remain. In a run without a sweep: "
            "the share of the weights that is pruned.",
        ),
        ("average", "Label of a layer that keeps about as much of its weights as the other layers do."),
        ("baseline", "Another way to rank the layers, such as the magnitude of trained weights."),
        (
            "beyond null",
            "The part of a layer's redundancy that its initial weights do not explain. The null misleads for layers "
            "of unusual fan-in.",
        ),
        ("channel", "One of the values that a layer puts out at each place: a filter's or a unit's output."),
        ("collapse", "A layer has come down to 1 % of its weights; its thresholds are then held or reset."),
        ("confidence", "How far the trials give one order of the layers: none, low, some or high."),
        ("cost", "How long the trials took, one after the other."),
        ("dense", "Of the model as it is, with nothing pruned."),
        (
            "excess",
            "How many times as wide as in a balanced network, relative to the typical group; 2 or more is too wide.",
        ),
        ("group", "Layers whose channels must be removed together, as their outputs are added or joined."),
        (
            "interval",
            "Where a value would lie in 95 of 100 repetitions with other seeds; all intervals of a proof hold at once.",
        ),
        (
            "Kendall's W",
            "Agreement of all trials about the order of the layers, from 0 (as if by chance) to 1 (the same order).",
        ),
        ("label", "What the ranking says of a layer: redundant, needed, average, unclear or not measured."),
        ("MACs", "Multiplications with additions that the model needs for one sample."),
        ("mask", "The weights of a layer that remain: those whose magnitude exceeds their threshold."),
        ("needed", "Label of a layer that keeps clearly more of its weights than the others, at every alpha and seed."),
        ("not measured", "Label of a layer without a reading in every trial that counts."),
        ("null", "The order that the initial weights alone would give, without any training."),
        (
            "proof",
            "The narrower network, the dense one and others of its size, trained alike from scratch with seeds.",
        ),
        ("rank", "Place in the order of redundancy; 1 is the most redundant layer."),
        (
            "redundancy",
            "The logarithm of how much sparser a layer is than the typical layer: 0.69 is half of what the typical "
            "layer keeps, −0.69 twice as much, on average over alphas and seeds.",
        ),
        (
            "redundant",
            "Label of a layer that keeps clearly less of its weights than the others, at every alpha and seed.",
        ),
        ("remaining", "The share of a layer's weights that pruning left, in the last quarter of training."),
        ("reset", "The thresholds of a collapsed layer were set back to zero, so that its weights came back."),
        ("saving", "How many parameters the suggested network has less. It is narrower, so it is also faster."),
        ("seed", "A number that decides the initial weights and the order of the data."),
        (
            "spare",
            "The share of a layer's weights that can go at no measurable loss of score, at the strongest alpha "
            "without such a loss.",
        ),
        (
            "spare weights",
            "The share of all single weights that can go at no measurable loss of score. They lie scattered, so a "
            "narrower network saves fewer.",
        ),
        (
            "stand-in data",
            "Handwritten digits, used where no data were given: they say little about your task.",
        ),
        ("step", "One update of the weights, from one batch."),
        ("tau", "Kendall's tau: agreement of two orders, from −1 (opposite) to 1 (the same)."),
        ("threshold", "A trained limit per row of a layer: weights of smaller magnitude count as zero."),
        (
            "trial",
            "One training, at one alpha and with one seed; the dense trial prunes nothing. In a run without a sweep "
            "a trial is pruned, and trained no more.",
        ),
        ("typical layer", "The median layer of the same trial."),
        (
            "unclear",
            "Label of a layer whose place changes between alphas or seeds, or may change with another seed.",
        ),
        ("warm-up", "Steps of dense training before the trials, which all of them start from."),
        ("width", "The number of channels, units or neurons that a layer puts out."),
    )
)
"""All terms, in alphabetical order."""

_BY_WORD = {term.word: term for term in GLOSSARY}
