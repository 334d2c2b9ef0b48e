"""`tidemill dag`: check, draw, start, rerun and follow dags."""
