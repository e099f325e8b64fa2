"""The first screen of the report: the answer, its numbers and how sure they are."""
