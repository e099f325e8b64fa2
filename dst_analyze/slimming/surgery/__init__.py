"""Surgery: from a traced model and the channels to remove to a smaller model."""
