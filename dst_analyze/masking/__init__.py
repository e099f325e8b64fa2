"""Stage 2: a `TracedModel` becomes a masked module: the masked-weight operator and the model that trains with it."""
