"""What an operation is, and the two ways to do one: on the database, or through a server."""
