"""Loads structlog without what it loads where it is installed: rich and pygments for tracebacks, and greenlet.

They take a tenth of a second and some megabytes in every process, and tracebacks of ours are plain text.
"""

import sys

_OPTIONAL = ("rich", "greenlet")

if "structlog" not in sys.modules:
    hidden = [name for name in _OPTIONAL if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # pyright: ignore[reportArgumentType]
    import structlog  # noqa: F401

    for name in hidden:
        del sys.modules[name]
