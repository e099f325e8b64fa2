"""Stage 3: a masked module and data become a `SweepRecord`: trials, the grid, the run folder."""
