"""One script per peer, each run by the interpreter of the peer venv (see `contest.py`)."""
