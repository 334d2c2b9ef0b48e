"""Telemetry: what hosts and processes use, what was done and how fast, and one trace per chain of jobs.

hosts, cgroup, gpu   read what a host uses now
sampler              keeps a sample of this host every few seconds, one process per host
meter                counts what a process does, and adds it to the totals in the database
exposition           the totals and samples as Prometheus text
streammetrics        the part of that text that tells of streams
endpoint             serves that text over HTTP
tracing              carries the trace of whoever enqueues to whoever runs
"""
