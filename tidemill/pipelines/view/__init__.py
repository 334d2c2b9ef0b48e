"""What people are shown of pipelines."""
