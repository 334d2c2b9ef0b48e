"""Tidemill measured beside its peers and beside the raw limit, on one server, in one run."""
