"""A run folder becomes a page. Nothing here imports torch or runs user code."""
