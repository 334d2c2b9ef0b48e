"""Live requests: the same plans, ahead of the backlog, with the result returned."""
