"""Loads structlog without rich and pygments, which it would use to draw tracebacks.

They take a tenth of a second in every process, and tracebacks of ours are plain text.
"""

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # pyright: ignore[reportArgumentType]
    import structlog  # noqa: F401

    del sys.modules["rich"]
