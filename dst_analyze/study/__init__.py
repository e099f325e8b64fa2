"""`Study`: a sweep whose trials are trained by a loop of your own; it asks for trials and is told their scores."""
