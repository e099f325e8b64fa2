"""A task and a trial key become a trial's output: recipe, training loop, measurements."""
