"""A masked model becomes a smaller one with the same outputs: what is proven dead is removed."""
