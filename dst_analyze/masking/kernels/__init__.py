"""The masked-weight operator's loops in C, compiled on first use."""
