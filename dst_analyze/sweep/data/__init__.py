"""Conversion of users' data, in any of the accepted forms, to `Batches`."""
