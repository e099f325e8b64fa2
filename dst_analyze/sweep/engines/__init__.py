"""Jobs become their results: in this process, in worker processes, or on Ray."""
