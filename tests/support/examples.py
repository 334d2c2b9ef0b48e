"""How many examples a property is tried with: all of them with `-m long`, a quarter otherwise.

The profiles are in conftest.py; a property without `examples` has the number of its profile.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

#: What the profile that tries everything has.
ALL = 100


def examples(count: int, **options: Any) -> settings:
    """The settings for so many examples with `-m long`, and for the same share as everywhere else otherwise."""
    return settings(max_examples=max(1, count * settings().max_examples // ALL), **options)
