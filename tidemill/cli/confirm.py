"""Asking a person before something that cannot be taken back."""

from __future__ import annotations

import sys

from tidemill.core.errors import ConfigError


def agreed(what: str) -> bool:
    """Whether the person at the terminal wants this; an error where there is no terminal to ask on."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(f"this would {what}: add --yes to do it")
    return input(f"{what}? [y/N] ").strip().lower() in ("y", "yes")
