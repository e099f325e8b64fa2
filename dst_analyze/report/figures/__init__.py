"""A record, a ranking or a plan becomes a figure."""
