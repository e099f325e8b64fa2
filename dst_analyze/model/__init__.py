"""From a file or object to a `TracedModel`: loading, example inputs, tracing, per-layer facts."""
