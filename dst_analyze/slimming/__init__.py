"""A `TracedModel` and a `Ranking` become a `SlimPlan`, a smaller model, its source, and the proof of it."""
