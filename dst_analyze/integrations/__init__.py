"""A sweep's events become another tool's: one file per guest, imported only when used."""
