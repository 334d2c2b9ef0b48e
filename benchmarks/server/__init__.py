"""The HTTP API, the live stream and the console, on a long history."""
