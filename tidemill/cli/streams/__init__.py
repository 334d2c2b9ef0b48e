"""`tidemill stream`: run streams, control them, replay dead letters."""
