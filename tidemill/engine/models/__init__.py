"""Models that stay loaded in a worker process."""
