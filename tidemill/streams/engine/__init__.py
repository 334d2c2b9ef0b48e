"""Runs the plans of messages in an engine process."""
