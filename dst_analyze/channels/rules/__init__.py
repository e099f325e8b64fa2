"""Channel rules, from a call to labels on its output: one file per family of operations."""
