"""Listeners that pass a sweep's events to other tools; each module is imported only when used."""
