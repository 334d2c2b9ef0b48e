"""Connections to PostgreSQL: where it is, how they are set up, and how callers share them."""
