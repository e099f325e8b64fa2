"""Planning: from a coupling, a ranking and a budget to a `SlimPlan`, with a reason for each width."""
