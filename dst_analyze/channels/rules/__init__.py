"""A call of an operation becomes labels on its output: one file per family of operations."""
