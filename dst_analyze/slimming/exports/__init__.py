"""The slim model in other formats: what each writes, and how far its outputs are those of the slim model."""
