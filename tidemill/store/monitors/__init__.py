"""Monitors, entities, alerts and notices in the database."""
