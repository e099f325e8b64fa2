"""A run folder or `SweepRecord` becomes a `Ranking`. Pure functions on pandas frames: nothing here imports torch."""
