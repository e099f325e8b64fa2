"""The commands, a file each: arguments in, what they print out. torch is imported once it is needed."""
