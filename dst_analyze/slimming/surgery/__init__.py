"""A traced model and the channels to remove become a smaller model."""
