"""Trying the text of a workflow file, saved or not: what would happen, and a real run that stores nothing."""
