"""From a model and example inputs to a `TracedModel`: the weight audit, layers, skipped weights."""
