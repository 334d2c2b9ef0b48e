"""Runs the steps of a flow: one attempt, its context, what it waits for, and its log."""
