"""Runs the real run worker on virtual time, a model of the store, and injected faults."""
