"""Jobs, queues, schedules and workers in the database."""
