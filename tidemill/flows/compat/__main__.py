"""Run a program that is written for LlamaIndex Workflows: `python -m tidemill.flows.compat program.py`."""

import sys

from tidemill.flows.compat import run_program

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m tidemill.flows.compat program.py [arguments...]")
    run_program(sys.argv[1], sys.argv[2:])
