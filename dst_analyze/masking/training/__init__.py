"""Thresholds trained beside the optimizer of the weights, and masks attached to a user's model."""
