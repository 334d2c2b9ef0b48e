"""What users declare: dags, their nodes, and the checks on them."""
