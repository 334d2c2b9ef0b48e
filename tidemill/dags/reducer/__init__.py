"""Pure decisions of a dag run: from ticks to state and commands."""
