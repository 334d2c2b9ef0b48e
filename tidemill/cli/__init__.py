"""The command line: commands parse, call an operation, and print."""

import sys

# structlog loads rich and pygments to draw tracebacks: a tenth of a second in every process. Ours are plain text.
if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # pyright: ignore[reportArgumentType]
    import structlog  # noqa: F401

    del sys.modules["rich"]
