"""From a model and example inputs to a `torch.fx` graph, on the best rung of the tracing ladder that works."""
