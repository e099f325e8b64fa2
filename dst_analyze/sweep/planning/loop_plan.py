"""The plan of a sweep whose trainings are a loop of the user's, made from the first of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dst_analyze.errors import ModelError
from dst_analyze.masking.layer import flat_layout, units_of
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.run.alpha_search import search_of
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.defaults import AskedPace, asked_scale, on_collapse_of
from dst_analyze.run.record import DataSummary, Manifest
from dst_analyze.sweep.planning.description.summaries import summarize_model, used_versions
from dst_analyze.sweep.planning.estimates.forecast import Travel, forecast, warning
from dst_analyze.sweep.planning.estimates.initial_alphas import first_alphas
from dst_analyze.sweep.training.magnitudes import Magnitudes
from dst_analyze.sweep.training.own_loop.loop import LoopMeter, LoopRecipe

OWN_LOOP = "trained by the user's own loop"
"""What the configuration of such a sweep says of its data."""


def plan_loop(
    meter: LoopMeter,
    asked: AskedPace,
    config: SweepConfig,
    traced: TracedModel,
    untrained: Mapping[str, torch.Tensor],
    *,
    name: str,
    data: DataSummary,
) -> tuple[SweepConfig, Manifest]:
    """Return the configuration with the factor of its alphas, and the manifest, for a loop that has been watched.

    Args:
        meter: What the first training has shown.
        asked: The thresholds' clock and unit and the warm-up, as far as they are asked for.
        config: The options of the study.
        traced: The model.
        untrained: The layers' weights before that training.
        name: What the report calls it.
        data: What the report says of the data.
    """
    steps, family = meter.steps, meter.family
    if not any(meter.rates):
        raise ModelError(
            f"the optimizer took {steps:,} {'step' if steps == 1 else 'steps'} at a learning rate of 0",
            place="the first training",
            hint="train longer, or shorten the schedule's warm-up",
        )
    recipe = LoopRecipe(
        family=family,
        lr=max(meter.rates),
        momentum=meter.momentum,
        schedule="constant",
        weight_decay=0.0,
        steps=steps,
        clock=asked.clock_in(steps, family),
        warm_up=asked.warm_up_in(steps),
        threshold_scale=asked.threshold_scale_in(steps),
        asked=asked,
        seen=tuple(meter.rates),
        optimizer_name=meter.optimizer_name,
    )
    travel = Travel(recipe, meter.noise, asked_scale(config))
    config = config.scaled(travel.factor)
    weights = _counted(traced, untrained, config, recipe)
    search = search_of(config)
    first = config.given_alphas or (first_alphas(travel, search.targets, weights) if search else ())
    expected = forecast(travel, first, weights)
    manifest = Manifest(
        sums="all",
        versions=used_versions(),
        model=summarize_model(traced, name=name, spec=config.model, form="modules: masks are attached in place"),
        data=data,
        steps=steps,
        warm_up=recipe.warm_up,
        reference="trained alike",
        threads=torch.get_num_threads(),
        optimizer=recipe.describe(),
        clock=recipe.clock,
        unit=recipe.threshold_scale,
        on_collapse=on_collapse_of(config),
        gradient_noise=travel.noise,
        device=next((p.device.type for p in traced.model.parameters()), "cpu"),
        first_alphas=first if search else (),
        forecast=expected,
        warning=warning(travel, () if search else expected, weights),
    )
    return config, manifest


def _counted(
    traced: TracedModel, untrained: Mapping[str, torch.Tensor], config: SweepConfig, recipe: LoopRecipe
) -> Magnitudes:
    """How large the weights are, in the unit that thresholds are counted in."""
    if recipe.threshold_scale == "one":
        return Magnitudes(untrained)
    units = units_of(flat_layout(traced.layers, config.threshold), list(untrained.values()))
    return Magnitudes({name: weight / unit for (name, weight), unit in zip(untrained.items(), units, strict=True)})
