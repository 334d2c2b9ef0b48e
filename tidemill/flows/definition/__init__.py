"""The declarations of users: workflows, steps, events, resources."""
