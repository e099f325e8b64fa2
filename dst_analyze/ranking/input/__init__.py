"""Measured ratios from a record or a frame, checked and converted to arrays."""
