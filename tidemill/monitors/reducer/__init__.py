"""Pure decisions of a monitor: from events and timers to entity state and alerts."""
