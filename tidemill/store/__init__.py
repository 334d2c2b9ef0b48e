"""PostgreSQL: the only layer that contains SQL."""
