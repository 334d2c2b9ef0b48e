"""What an application brings to its processes: how it is found, its connections, lifespan, middleware and hooks."""
