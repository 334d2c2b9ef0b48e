"""How far a source has been read: open and finished positions, where they are stored, and which process reads."""
