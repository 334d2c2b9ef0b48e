"""Checks of workflow files: the kinds of nodes with their fields, and every problem with its place."""
