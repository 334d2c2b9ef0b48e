"""What docs/testing.md takes for granted."""

from __future__ import annotations

RUN_ELSEWHERE = "the tests of examples/testing are the same, and tests/testing/test_plugin.py runs them"
NOT_RUN = dict.fromkeys(("Testing an application", "Moving the clock", "Fakes", "Crashes"), RUN_ELSEWHERE)
