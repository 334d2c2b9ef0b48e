"""The `tidemill` command. `--version`, `--help`, and `pipeline check` of a whole pipeline, load only what they need."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run one command and exit."""
    if sys.argv[1:] == ["--version"]:
        from tidemill.version import VERSION

        print(VERSION)
        return
    from tidemill.cli.overview import HELP, overview

    if sys.argv[1:] in HELP:
        print(overview())
        return
    plain = all(not word.startswith("-") for word in sys.argv[3:]) and not os.environ.get("TIDEMILL_SERVER")
    if sys.argv[1:3] == ["pipeline", "check"] and plain:
        gc.disable()  # Every object made here is needed until the exit.
        from tidemill.cli.pipelines.quick_check import check_quickly

        status = check_quickly(sys.argv[3:])
        if status is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)  # Freeing all objects one by one would take longer than the check.
        gc.enable()
    from tidemill.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
