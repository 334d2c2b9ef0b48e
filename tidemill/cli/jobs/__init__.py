"""Commands about jobs, queues, schedules and workers."""
