"""Credentials, the keys that seal them, and the environment variables that definitions may read."""
