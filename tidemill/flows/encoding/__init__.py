"""Encode events, state, exceptions and ticks as JSON, and decode them."""
