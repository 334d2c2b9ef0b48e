"""Samples of hosts, totals and throughput in the database."""
