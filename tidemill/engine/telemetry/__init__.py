"""Telemetry: resource use of hosts and processes, counts and durations, and one trace per chain of jobs.

hosts, cgroup, gpu   read the current resource use of a host
sampler              stores a sample of this host every few seconds, one process per host
meter                counts what a process does, and adds it to the totals in the database
exposition           the totals and samples as Prometheus text
metric_families      gauges, counters and histograms from totals
stream_metrics       the part of that text about streams
endpoint             serves that text over HTTP
tracing              passes the trace of the enqueuing code to the job
"""
