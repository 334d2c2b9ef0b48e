"""What every request passes: connection limits, authentication, idempotency."""
