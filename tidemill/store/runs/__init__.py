"""Runs, journals and inboxes in the database."""
