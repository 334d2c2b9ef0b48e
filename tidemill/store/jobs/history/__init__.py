"""Finished jobs: moving them to the history, and its daily partitions."""
