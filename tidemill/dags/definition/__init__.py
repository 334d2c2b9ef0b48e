"""The declarations of users: dags, their nodes, and the validation of both."""
