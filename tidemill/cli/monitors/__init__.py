"""`tidemill monitor`: run monitors, and work with entities and alerts."""
