"""Drawings and graph representations of workflows and their runs."""
