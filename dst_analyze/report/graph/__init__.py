"""A model's graph becomes a drawing: what is shown, where it stands, how it looks."""
