"""A plan as a change of the user's own source: `slim_model.patch`."""
