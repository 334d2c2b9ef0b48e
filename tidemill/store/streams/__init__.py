"""The PostgreSQL log, cursors, retries and dead letters."""
