"""Real applications on Tidemill's public API."""
