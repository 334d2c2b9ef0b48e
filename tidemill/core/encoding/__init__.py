"""JSON with its lines, JSON columns of rows, and sealed payloads."""
