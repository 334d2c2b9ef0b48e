"""State stores: files, an object store, the database."""
