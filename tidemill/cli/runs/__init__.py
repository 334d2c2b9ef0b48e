"""Commands about runs of flows and dags."""
