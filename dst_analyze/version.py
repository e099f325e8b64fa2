"""The single source of the version number (hatch reads it when building)."""

__version__ = "0.1.0.dev0"
