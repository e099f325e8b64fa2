"""A masked model and data become a run folder: planning, data, training, engines."""
