"""Stage 4: a `SweepRecord` becomes a ranking. Pure functions on pandas frames: nothing here imports torch."""
