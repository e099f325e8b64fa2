"""From model, data and options to a `Plan` that is checked, timed and forecast before any training."""
