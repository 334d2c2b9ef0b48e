"""What the package shows at first sight."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tidemill
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.engine.settings import SettingOptions, Settings

PACKAGE = Path(tidemill.__file__).parent


def test_dir_shows_what_can_be_imported() -> None:
    assert dir(tidemill) == sorted(tidemill.__all__)
    assert {"App", "Call", "JobHandle", "RetryPolicy", "Task"} <= set(dir(tidemill))
    assert all(getattr(tidemill, name) is not None for name in dir(tidemill))


def test_one_class_is_called_retry_policy() -> None:
    found = [
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef) and node.name == "RetryPolicy"
    ]
    assert found == ["core/retry.py"]


def test_app_takes_every_setting_and_no_other() -> None:
    assert {*SettingOptions.__annotations__, "application"} == set(Settings.__struct_fields__)
    with pytest.raises(ConfigError, match="there is no setting 'lease_second'; did you mean 'lease_seconds'"):
        App("shop", lease_second=3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ConfigError, match="there is no setting 'nonsense'; the settings are database_url, directory, "):
        App("shop", nonsense=3)  # pyright: ignore[reportCallIssue]
