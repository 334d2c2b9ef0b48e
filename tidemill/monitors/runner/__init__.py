"""Runs monitors: ingest events, evaluate entities, send notices."""
