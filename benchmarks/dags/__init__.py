"""Dags beside plain jobs and Prefect, and warm models."""
