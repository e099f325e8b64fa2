"""Proofs: train a plan's model and others of its size alike, and return a `Verification`."""
