"""Example inputs for a loaded model: the user's, a batch of the data, or a guess with which it runs."""
