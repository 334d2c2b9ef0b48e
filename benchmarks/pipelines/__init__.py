"""Pipelines of files, beside other build tools."""
