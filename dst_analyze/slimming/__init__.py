"""Slimming: from a `TracedModel` and a `Ranking` to a `SlimPlan`, the smaller model, its source and its proof."""
