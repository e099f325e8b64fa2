"""A model and example inputs become a `TracedModel`: the weight audit, per-layer facts, what is skipped and why."""
