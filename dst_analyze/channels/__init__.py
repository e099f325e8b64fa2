"""From a `TracedModel` to a `Coupling`: which channels must be removed together."""
