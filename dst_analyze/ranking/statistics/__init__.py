"""Statistics on arrays whose rows are trials and whose columns are layers."""
