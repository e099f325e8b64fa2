"""The files of a run folder: their names, written whole or not at all, read safely, locked by one writer."""
