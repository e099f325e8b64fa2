"""Other ways to rank layers, measured on the same model and data, so that the sweep's can be held against them."""
