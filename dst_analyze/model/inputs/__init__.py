"""A loaded model becomes example inputs: the user's own, a batch of the data, or a guess that runs."""
