"""Runs dags: every node is a job, and its end is a tick of the run."""
