"""What users declare: workflows, steps, events, resources."""
