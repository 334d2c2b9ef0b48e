"""Run a step again by its record: operations that are recorded give what they gave."""
