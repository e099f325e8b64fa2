"""The border: a run folder on disk becomes values and back. Nothing here imports torch."""
