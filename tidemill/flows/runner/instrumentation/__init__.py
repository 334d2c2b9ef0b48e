"""Spans of runs and steps for `llama_index_instrumentation`."""
