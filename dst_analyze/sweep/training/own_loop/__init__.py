"""Trials whose training is a loop of the user's: a study's, or ``fit(model)`` of a file."""
