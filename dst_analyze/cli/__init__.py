"""Arguments become an exit code: the commands, their options, and what the terminal shows."""
