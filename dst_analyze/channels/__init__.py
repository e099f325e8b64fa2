"""A `TracedModel` becomes a `Coupling`: which channels must leave together. Knows nothing of sweeps or widths."""
