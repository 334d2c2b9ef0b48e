"""Other systems that Tidemill works with; each needs an extra of its own."""
