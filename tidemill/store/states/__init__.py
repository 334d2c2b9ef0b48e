"""States of pipelines in the database."""
