"""Pure decisions of a stream: what is dispatched next, and what becomes of a message."""
