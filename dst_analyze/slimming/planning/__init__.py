"""A coupling, a ranking and a budget become a `SlimPlan`: widths, with reasons."""
