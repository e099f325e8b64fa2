"""Notes on what limits a sweep's results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from dst_analyze.run.alpha_search import plateau, search_of
from dst_analyze.run.record import UNPRUNED, WORKING, SweepRecord, alpha_label
from dst_analyze.text import shorten_middle

_MISSED = 1 / 5  # relative distance from a target ratio above which it counts as missed
_LEARNED = 0.97  # a model has learned if its loss falls below this share of the first loss


class Title(StrEnum):
    """Titles of notes."""

    QUICK = "No sweep was run"
    STAND_IN = "Stand-in data"
    BEFORE = "Before training"
    HARDLY_LEARNED = "Hardly learned"
    NOT_REACHED = "Not reached"
    NO_EFFECT = "Alpha makes no difference"
    DIVERGED = "Diverged"
    FAILED = "Failed"
    NOTHING_PRUNED = "Nothing was pruned"
    WEAK_ALPHA = "Weak alpha"
    BROKEN = "Nothing works any more"
    UNTIL_STABLE = "Until stable"
    RESETS = "Resets"
    HELD = "Held at 1 %"


@dataclass(frozen=True)
class Note:
    """A title, and what happened with what to do about it."""

    title: str
    text: str


def notes_of(record: SweepRecord) -> list[Note]:
    """Return the notes on a sweep, most important first."""
    found = (_quick, _data, _before, _learning, _targets, _flat, _lost, _unpruned, _broken, _stable, _resets, _held)
    return [note for find in found for note in find(record)]


def _quick(record: SweepRecord) -> Iterator[Note]:
    if record.config.quick:
        steps, seeds = record.manifest.warm_up, len(record.config.seeds)
        trained = (
            f"the model's weights were trained for {steps:,} steps without masks"
            if steps
            else "trained weights were given"
        )
        times = f", with {seeds} seeds" if seeds > 1 else ""
        yield Note(
            Title.QUICK,
            f"This is a quick run: {trained}{times}, and the smallest ones were pruned at once. Alpha is the share "
            "of the weights that was pruned. A run without --quick trains the masks, too.",
        )


def _data(record: SweepRecord) -> Iterator[Note]:
    if record.manifest.data.stand_in:
        yield Note(
            Title.STAND_IN,
            f"The model file gives no data, so the sweep trained on {record.manifest.data.description}. "
            "The pattern shows how the method works, not what your data need: define train_data() in the model file, "
            "or give --data.",
        )


def _before(record: SweepRecord) -> Iterator[Note]:
    if record.manifest.warning:
        yield Note(Title.BEFORE, record.manifest.warning)


def _learning(record: SweepRecord) -> Iterator[Note]:
    losses = record.steps.loc[record.steps["alpha"].isna(), "loss"].dropna()
    if len(losses) < 4:
        return
    first, last = float(losses.iloc[0]), float(losses.iloc[-(len(losses) // 4) :].mean())
    if last > _LEARNED * first > 0:
        yield Note(
            Title.HARDLY_LEARNED,
            f"The dense model's training loss went from {first:.3g} to {last:.3g} in {record.manifest.steps:,} steps: "
            "such a pattern is little evidence of what the data need. Train longer (--steps) or with another --lr.",
        )


def _targets(record: SweepRecord) -> Iterator[Note]:
    asked = record.targets if record.config.target_remaining else ()
    missed = [target for target in asked if abs(target.reached - target.ratio) > _MISSED * target.ratio]
    if missed:
        said = ", ".join(f"{t.ratio:.1%} (alpha {alpha_label(t.alpha)} leaves {t.reached:.1%})" for t in missed)
        yield Note(
            Title.NOT_REACHED,
            f"No alpha was found that leaves {said}. Try more --steps, or other --alphas to start from.",
        )


def _flat(record: SweepRecord) -> Iterator[Note]:
    """Yield a note if a search was given up because what remains does not depend on alpha."""
    done = [t for t in record.trials if t.status == "done" and t.alpha is not None and not t.control]
    seen = {t.alpha: t.reached for t in done if t.alpha is not None and t.seed == record.config.seeds[0]}
    found = plateau(seen) if search_of(record.config) else None
    if found is not None:
        low, high, ratio = found
        yield Note(
            Title.NO_EFFECT,
            f"Alpha {alpha_label(low)} and {alpha_label(high)} both leave {ratio:.0%} of the weights: what remains "
            "does not depend on alpha, so the search stopped. Layers collapse and come back, or the model has not "
            "learned: try another --optimizer or a lower --lr, --on-collapse hold, or weaker --alphas.",
        )


def _lost(record: SweepRecord) -> Iterator[Note]:
    for trial in record.trials:
        if trial.status == "diverged":
            yield Note(
                Title.DIVERGED,
                f"The loss of {trial.key.label} was no longer finite at step {trial.steps}: "
                "the trial is left out. A lower learning rate (--lr) may help.",
            )
        elif trial.status == "failed":
            yield Note(Title.FAILED, f"{trial.key.label} is left out: {trial.reason}. --retry-failed runs it again.")


def _unpruned(record: SweepRecord) -> Iterator[Note]:
    ratios = {alpha: ratio for alpha in record.alphas if (ratio := record.remaining(alpha)) is not None}
    flat = [alpha for alpha, ratio in ratios.items() if ratio > UNPRUNED]
    if flat and len(flat) == len(ratios):
        yield Note(
            Title.NOTHING_PRUNED,
            f"More than {UNPRUNED:.0%} of the weights remain at every alpha: the alphas are too weak to compare the "
            "layers of this model. --alphas auto finds stronger ones.",
        )
    elif flat:
        said = " and ".join(f"{alpha_label(alpha)} ({ratios[alpha]:.1%} remain)" for alpha in flat)
        yield Note(Title.WEAK_ALPHA, f"Alpha {said} prunes too little to compare layers: the ranking leaves it out.")


def _broken(record: SweepRecord) -> Iterator[Note]:
    """Yield a note if no masked model does the task: its pattern shows a collapse, not the task's needs."""
    alphas = [alpha for alpha in record.alphas if record.at(alpha)]
    if alphas and not any(record.does_the_task(trial) for alpha in alphas for trial in record.at(alpha)):
        yield Note(
            Title.BROKEN,
            f"Every masked trial scores far below the dense model (under {WORKING:.0%} of its score): "
            + (
                "a run without --quick trains what is left."
                if record.config.quick
                else "the alphas are too strong for this model. Give weaker --alphas, or train longer (--steps)."
            ),
        )


def _stable(record: SweepRecord) -> Iterator[Note]:
    saved = record.budget_saved
    if saved is not None:
        ended = sum(trial.stable for trial in record.trials)
        yield Note(
            Title.UNTIL_STABLE,
            f"{ended} of {len(record.trials)} trials ended before their {record.manifest.steps:,} steps, as the "
            f"order of the layers no longer changed: {saved:.0%} of the budget was saved.",
        )


def _resets(record: SweepRecord) -> Iterator[Note]:
    resets = sum(sum(trial.resets.values()) for trial in record.trials)
    if resets:
        layers = sorted({layer for trial in record.trials for layer in trial.resets})
        more = f" and {len(layers) - 4} more" if len(layers) > 4 else ""
        shown = ", ".join(shorten_middle(layer, 40) for layer in layers[:4]) + more
        yield Note(
            Title.RESETS,
            f"Thresholds were reset to zero {resets} times because a layer kept at most 1 % ({shown}). The ratios of "
            "these layers rise and fall with each reset; the report shows their median.",
        )


def _held(record: SweepRecord) -> Iterator[Note]:
    found: dict[float, list[str]] = {}
    for trial in record.trials:
        if trial.alpha in record.alphas and trial.held:
            known = found.setdefault(trial.alpha, [])
            known += [name for name in trial.held if name not in known]
    for alpha, layers in sorted(found.items()):
        more = f" and {len(layers) - 4} more" if len(layers) > 4 else ""
        named = ", ".join(shorten_middle(layer, 40) for layer in layers[:4])
        yield Note(
            Title.HELD,
            f"At alpha {alpha_label(alpha)} {named}{more} would have "
            "kept less than 1 % of the weights; thresholds were limited to keep 1 %.",
        )
