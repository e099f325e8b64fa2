"""From a model spec or object to a `LoadedModel`: the file, its model, hooks and weights."""
