"""From a model spec or object to a `LoadedModel`: the file, the model in it, its hooks and its weights."""
