"""How events, state, exceptions and ticks become JSON and come back."""
