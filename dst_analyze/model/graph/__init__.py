"""A model and example inputs become a `torch.fx` graph, on the highest rung of the ladder that holds."""
