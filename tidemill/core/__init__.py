"""Pure data and decisions that all layers share: no I/O, no clock, no randomness."""
