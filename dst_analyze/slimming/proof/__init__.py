"""A plan becomes a `Verification`: candidates of the same size, trained alike."""
