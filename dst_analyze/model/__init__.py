"""Stage 1: a file or object becomes a `TracedModel`: loading, tracing, per-layer facts."""
