"""Exact slimming: from a masked model to a smaller one with the same outputs, without its proven dead channels."""
