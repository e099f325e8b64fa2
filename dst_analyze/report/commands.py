"""The commands that reproduce a run, derived from its configuration."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dst_analyze.baselines.agreement import MethodComparison
from dst_analyze.report.overview.answer import Answer, Standing
from dst_analyze.run.alpha_search import rounded
from dst_analyze.run.caveats import Title, notes_of
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.defaults import DEFAULT_STEPS, AskedPace, asked_scale, on_collapse_of
from dst_analyze.run.files.paths import SLIM_SOURCE
from dst_analyze.run.record import SweepRecord, alpha_label
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.proof.result import Verification


def commands(
    record: SweepRecord, plan: SlimPlan | None, proof: Verification | None, methods: MethodComparison | None = None
) -> list[str]:
    """Return the commands that reproduce a run; none if its model was an object in memory."""
    config, run = record.config, str(record.folder)
    if not config.can_be_made_again:
        return []
    beside = ["--baselines", ",".join(methods.measured)] if methods else []
    lines = [command_again(record, *beside, "--out", run)]
    if plan is not None:
        asked = [part for name, share in plan.asked.items() for part in (f"--target-{name}", f"{share:g}")]
        if plan.target is not None and plan.target.is_expected:
            asked = ["--target", "auto"]
        careful = ["--only-clear"] if plan.limits.unclear or plan.limits.needed else []
        lines.append(shlex.join(["dst-analyze", "slim", run, *asked, "--rule", plan.rule, *careful]))
    if proof is not None:
        lines.append(
            shlex.join(["dst-analyze", "verify", run, "--seeds", "auto" if proof.looks > 1 else str(len(proof.seeds))])
        )
    return [*lines, shlex.join(["dst-analyze", "report", run])]


_STRONGER = 30  # factor for alphas that pruned nothing, or all
_MORE_SEEDS = "5"  # of a proof whose interval is too wide


@dataclass(frozen=True)
class NextStep:
    """The command that adds most to what is known, and what it does."""

    words: str
    command: str


@dataclass(frozen=True)
class Problem:
    """What leaves a sweep without evidence, or a part of it, and the command that helps."""

    what: str
    step: NextStep


def problem_of(record: SweepRecord) -> Problem | None:
    """Return the most important problem of a run that another run mends; None if there is none."""
    titles = {note.title for note in notes_of(record)}
    given = record.config.given_alphas
    longer = NextStep("Train four times as long", command_again(record, **_longer(record)))
    if not record.complete:
        lost = [trial for trial in record.trials if trial.status != "done"]
        return Problem(
            f"{len(lost)} of {len(record.trials)} trials did not end well ({lost[0].key.label}: {lost[0].reason})",
            NextStep("Repeat the trials that failed", command_again(record, "--retry-failed")),
        )
    if Title.NOTHING_PRUNED in titles:
        stronger = tuple(rounded(_STRONGER * alpha) for alpha in given) or "auto"
        return Problem(
            "nothing was pruned: the alphas are too weak for this model, so layers do not differ",
            NextStep("Let training prune more", command_again(record, alphas=stronger)),
        )
    if Title.NO_EFFECT in titles:
        other = "sgd" if "Adam" in record.manifest.optimizer else "adamw"
        own = record.manifest.optimizer.startswith("the optimizer of the model file")
        step = NextStep("Use another optimizer", command_again(record, optimizer=other))
        return Problem(
            "what remains does not depend on alpha, so the search for alphas stopped", longer if own else step
        )
    if Title.BROKEN in titles:
        weaker = tuple(rounded(alpha / _STRONGER) for alpha in given)
        step = NextStep("Let training prune less", command_again(record, alphas=weaker))
        return Problem(
            "every masked trial scores far below the dense model: the alphas are too strong for this model",
            step if given else longer,
        )
    if Title.HARDLY_LEARNED in titles:
        return Problem("the dense model has hardly learned, so its masks are no evidence", longer)
    return None


def _longer(record: SweepRecord) -> dict[str, Any]:
    """Return the options of a training that is four times as long."""
    return {"steps": 4 * record.manifest.steps, "epochs": None, "max_epochs": None}


def next_step(record: SweepRecord, answer: Answer, *, has_source: bool, size: float | None = None) -> NextStep | None:
    """Return the command that comes next; None if the run's model was an object in memory.

    ``size`` is the share of the parameters that the suggested network has.
    """
    config, run = record.config, str(record.folder)
    if not config.can_be_made_again:
        return None
    if answer.standing in (Standing.NO_EVIDENCE, Standing.NO_PLAN) and (problem := problem_of(record)) is not None:
        return problem.step
    if answer.standing in (Standing.UNPROVEN, Standing.UNFINISHED) and record.manifest.data.stand_in:
        own = "Define train_data() in the model file, or add --data NAME, and run again on your own data"
        return NextStep(own, command_again(record))
    if answer.standing in (Standing.UNPROVEN, Standing.UNFINISHED):
        return NextStep(
            "Train the narrower network beside the dense one and others of its size", _command("verify", run)
        )
    if answer.standing in (Standing.TRAINED, Standing.DOUBTFUL):
        return NextStep("Train the narrower network with more seeds", _command("verify", run, "--seeds", _MORE_SEEDS))
    if answer.standing is Standing.PROVEN and has_source:
        source = str(record.folder / SLIM_SOURCE)
        return NextStep("Analyse the narrower network in its turn: it is a model file", _command(source))
    if answer.standing is Standing.TEST_RUN:
        return NextStep("Make the real run", _command(config.model))
    if answer.standing is Standing.COSTLY and size is not None:
        larger = f"{(1 + size) / 2:.2g}"
        return NextStep("Suggest a larger network", _command("slim", run, "--target-params", larger))
    if answer.standing is Standing.NO_PLAN:
        return NextStep("Suggest narrower widths", _command("slim", run))
    if config.alphas == "auto" or answer.standing is not Standing.NO_EVIDENCE:
        longer = command_again(record, **_longer(record))
        return NextStep("Train four times as long, for a clearer order of the layers", longer)
    return NextStep("Let the sweep find its own strengths of pruning", command_again(record, alphas="auto"))


def _command(*words: str) -> str:
    return shlex.join(["dst-analyze", *words])


def command_again(record: SweepRecord, *beside: str, **changes: Any) -> str:
    """Return the command that repeats a run, with some options changed."""
    changed = replace(record, config=record.config.model_copy(update=changes))
    return shlex.join(["dst-analyze", changed.config.model, *_options(changed), *beside])


def _options(record: SweepRecord) -> Iterator[str]:
    config = record.config
    for name, value in config.model_args.items():
        yield from ("--model-arg", f"{name}={value}")
    if record.manifest.data.name:
        yield from ("--data", record.manifest.data.name)
    for name, value in config.options.items():
        if value == SweepConfig.model_fields[name].default:
            continue
        option = f"--{name.replace('_', '-')}"
        if value is True:
            yield option
        elif name == "seeds":
            yield from (option, str(len(value)))
        elif name in ("include", "exclude"):
            yield from (part for pattern in value for part in (option, pattern))
        elif isinstance(value, tuple):
            yield from (option, ",".join(map(alpha_label if name == "alphas" else str, value)))
        else:
            yield from (option, f"{value:.12g}" if isinstance(value, float) else str(value))
    # The run may be of a version with other defaults.
    made = record.manifest
    has_length = config.steps or config.epochs or config.max_epochs or config.recipe == "paper"
    if not has_length and made.steps != DEFAULT_STEPS:
        yield from ("--steps", str(made.steps))
    if config.alpha_factor is None and asked_scale(config) is None:
        yield from ("--alpha-scale", "1")
    if made.on_collapse != on_collapse_of(config):
        yield from ("--on-collapse", made.on_collapse)
    asked = AskedPace.of(config)
    if made.warm_up != asked.warm_up_in(made.steps):
        yield from ("--warm-up", str(made.warm_up))
    if made.unit != asked.threshold_scale_in(made.steps):
        yield from ("--threshold-scale", made.unit)
