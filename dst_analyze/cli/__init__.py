"""Arguments become an exit code; the only place that prints."""
