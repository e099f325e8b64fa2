"""Engines that run jobs: in this process, in worker processes, or on Ray."""
