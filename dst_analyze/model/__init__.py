"""A file or object becomes a `TracedModel`: loading, example inputs, tracing, per-layer facts."""
