"""Drawings of a model's graph: the parts shown, their layout, their colours."""
