"""Schedules and their fires."""
