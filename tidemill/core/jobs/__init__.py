"""The data of jobs and batches, and fair lanes."""
