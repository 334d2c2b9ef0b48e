"""What people are shown of dags and their runs."""
