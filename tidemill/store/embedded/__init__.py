"""A private PostgreSQL server that needs no set-up."""
