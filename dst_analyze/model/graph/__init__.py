"""From a model and example inputs to a `torch.fx` graph, on the best possible rung of the ladder."""
