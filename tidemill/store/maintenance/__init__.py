"""Backups, checks, partitions, and what is deleted when it is old."""
