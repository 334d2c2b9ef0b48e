"""Pure decisions of a flow run: from ticks to state and commands."""
