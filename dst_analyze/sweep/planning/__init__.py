"""A model, data and options become a `Plan`: checked, timed and forecast before anything is trained."""
