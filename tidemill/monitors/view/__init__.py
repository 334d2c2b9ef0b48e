"""Backtests, and their charts."""
