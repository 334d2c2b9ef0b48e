"""docs/tutorial.md takes nothing for granted. tests/project/test_tutorial.py runs its commands and its tests."""

from __future__ import annotations

NOT_RUN = {"5. Tests": "pytest runs it: tests/project/test_tutorial.py"}
