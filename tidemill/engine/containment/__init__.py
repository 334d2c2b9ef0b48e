"""Containment: code that misbehaves hurts only itself, is found in seconds, and is named."""
