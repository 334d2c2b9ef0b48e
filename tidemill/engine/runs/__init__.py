"""Drives durable runs: control loop, journal, ownership."""
