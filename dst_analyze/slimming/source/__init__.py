"""A slim model becomes Python source that builds it."""
