"""What is sent to workers: tasks, tensors in shared memory, the user's own files."""
