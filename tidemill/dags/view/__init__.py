"""Drawings, explanations and views of dags and their runs."""
