"""Figures of records, rankings and plans."""
