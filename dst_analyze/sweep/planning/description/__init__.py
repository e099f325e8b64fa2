"""What a run folder says of the model, the data and the code it was made with."""
