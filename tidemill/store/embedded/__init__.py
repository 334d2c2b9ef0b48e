"""A private PostgreSQL server that needs no setup."""
