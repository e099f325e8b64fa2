"""A model spec or object becomes a `LoadedModel`: finding the file, the model in it, its hooks and its weights."""
