"""Streams, beside other consumers."""
