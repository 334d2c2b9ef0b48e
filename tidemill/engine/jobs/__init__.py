"""Tasks, and how calls of them become jobs."""
