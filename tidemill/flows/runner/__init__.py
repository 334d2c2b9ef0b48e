"""Runs flows, in memory and durably."""
