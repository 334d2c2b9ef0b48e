"""Pure decisions of a stream: what is dispatched next, and what happens to a message."""
