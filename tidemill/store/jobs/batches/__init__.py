"""Batches of jobs: storing and reading them, and their end."""
