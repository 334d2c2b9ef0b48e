"""Commands that start processes: `up`, `worker`, `maintenance`, `server`."""
