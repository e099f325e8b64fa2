"""The report of a run folder, made without torch and without user code."""
