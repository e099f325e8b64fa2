"""From a `TracedModel` to a `MaskedModel`: the masked-weight operator, and the model that trains with it."""
