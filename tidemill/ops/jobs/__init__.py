"""Operations on jobs, queues, schedules and workers."""
