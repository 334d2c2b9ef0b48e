"""Ingest, decoders, alerts and backtests of monitors."""
