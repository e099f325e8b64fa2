"""Python source of a slim model."""
