"""Measured ratios, from a record or from a frame, checked and brought into arrays."""
