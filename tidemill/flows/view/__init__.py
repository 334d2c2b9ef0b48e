"""What people are shown of workflows and their runs."""
