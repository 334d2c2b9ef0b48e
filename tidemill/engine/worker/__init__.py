"""Claims jobs, runs them, and reports how they ended."""
