"""The state of a flow run: its data, paths into what steps share, their writes and how these are undone. Pure."""
