"""Builds states: in this process, or as jobs on queues."""
