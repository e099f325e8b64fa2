"""A ranking or a sweep as text, Markdown, CSV, JSON, HTML and as one table."""
