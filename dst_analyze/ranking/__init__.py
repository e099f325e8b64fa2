"""Rankings of layers, computed from a run folder or a `SweepRecord` without importing torch."""
