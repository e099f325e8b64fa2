"""Stage 6: a run folder becomes a page. Nothing here imports torch or runs user code."""
