"""The single source of the version number (hatch reads it when building)."""

__version__ = "1.0.0rc1"
