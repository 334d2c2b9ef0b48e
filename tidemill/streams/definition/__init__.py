"""What users declare: streams, plans and their tasks."""
