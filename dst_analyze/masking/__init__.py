"""From a `TracedModel` to a `MaskedModel`: the masked-weight operator, and its model."""
