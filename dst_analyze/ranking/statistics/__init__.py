"""Statistics on arrays: rows are trials, columns layers. Nothing here knows of records, frames or words."""
