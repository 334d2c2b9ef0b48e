"""Pure decisions of a pipeline: which states are stale, why, and what to build."""
