"""The manifest of a planned sweep: what its run folder says of it."""

from __future__ import annotations

from dst_analyze.model.loading.load import LoadedModel
from dst_analyze.run.alpha_search import search_of
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.defaults import on_collapse_of
from dst_analyze.run.record import DataSummary, DefaultOptimizer, Manifest
from dst_analyze.sweep.planning.description.fingerprint import code_sha256
from dst_analyze.sweep.planning.description.summaries import summarize_model, used_versions
from dst_analyze.sweep.planning.estimates.forecast import Travel, forecast, warning
from dst_analyze.sweep.planning.estimates.initial_alphas import first_alphas
from dst_analyze.sweep.training.trial import Task


def manifest_of(
    loaded: LoadedModel,
    task: Task,
    travel: Travel,
    data: DataSummary,
    optimizer: DefaultOptimizer | None,
    weights: str,
) -> Manifest:
    """Return what the run folder says of a planned sweep; ``weights`` is how a file's names were matched."""
    traced, config = task.traced, task.config
    warms_up = task.recipe.warm_up > 0
    initial = task.initial_in_scale(loaded.model)
    search = search_of(config)
    first = config.given_alphas or first_alphas(travel, search.targets, initial) if search else ()
    expected = () if config.quick else forecast(travel, first or config.given_alphas, initial)
    warnings = (
        () if config.quick else (warning(travel, () if search else expected, initial), _one_trial_warning(config))
    )
    return Manifest(
        sums="all",
        versions=used_versions(),
        model=summarize_model(
            traced,
            name=loaded.name,
            spec=loaded.spec,
            sha256=config.model_sha256,
            form=task.runs_as,
            files=code_sha256(loaded),
            weights=weights,
        ),
        data=data,
        steps=task.steps,
        quick=config.quick,
        warm_up=task.recipe.warm_up,
        reference="trained alike",
        threads=task.threads,
        warm_up_threads=task.warm_up_threads if warms_up and task.warm_up_threads != task.threads else None,
        optimizer=task.recipe.describe(),
        default_optimizer=optimizer,
        clock=task.recipe.clock,
        unit=task.recipe.threshold_scale,
        on_collapse=on_collapse_of(config),
        gradient_noise=travel.noise,
        device=task.device.describe(),
        first_alphas=first,
        forecast=expected,
        warning=" ".join(filter(None, warnings)),
    )


def _one_trial_warning(config: SweepConfig) -> str:
    if len(config.given_alphas) != 1 or len(config.seeds) > 1 or config.target_remaining:
        return ""
    return "One alpha and one seed make one trial, which no other trial confirms: give two alphas, or several seeds."
