"""Measurements that need a GPU, each run by itself."""
