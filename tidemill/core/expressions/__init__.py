"""Expressions in plain data: paths, refs, templates, conditions, and what a dry run shows of them."""
