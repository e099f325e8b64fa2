"""Weights and thresholds become masked weights: the C loops, compiled on first use."""
