"""Where states are kept: files, an object store, the database."""
