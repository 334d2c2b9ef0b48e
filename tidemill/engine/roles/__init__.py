"""Roles of a deployment: life cycle, lease, supervisor, and the roles that belong to no shape."""
