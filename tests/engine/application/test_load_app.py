"""Finding the application that a command line names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemill.core.errors import ConfigError
from tidemill.engine.application.load_app import load_app

ONE = 'from tidemill import App\napp = App("shop")\n'


@pytest.fixture(autouse=True)
def _forget_what_was_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_file_with_one_app_is_enough(tmp_path: Path) -> None:
    assert load_app(write(tmp_path, "load_shop.py", ONE)).name == "shop"


def test_a_file_that_is_loaded_twice_gives_the_same_app(tmp_path: Path) -> None:
    path = write(tmp_path, "load_twice.py", ONE)
    assert load_app(path) is load_app(path)


def test_an_app_with_two_names_is_one_app(tmp_path: Path) -> None:
    assert load_app(write(tmp_path, "load_alias.py", ONE + "application = app\n")).name == "shop"


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, "load_neighbour.py", "NAME = 'corner'\n")
    path = write(
        tmp_path, "load_imports.py", "from load_neighbour import NAME\nfrom tidemill import App\napp = App(NAME)\n"
    )
    assert load_app(path).name == "corner"


def test_one_of_several_apps_is_chosen_by_name(tmp_path: Path) -> None:
    path = write(tmp_path, "load_two.py", ONE + 'other = App("other")\n')
    assert load_app(f"{path}:other").name == "other"
    with pytest.raises(ConfigError, match=r"declares several Apps \(app, other\): say which, as in .*:app"):
        load_app(path)


def test_a_module_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "load_package").mkdir()
    write(tmp_path / "load_package", "__init__.py", "")
    write(tmp_path / "load_package", "web.py", ONE)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_app("load_package.web").name == "shop"
    assert load_app("load_package.web:app").name == "shop"


def test_a_module_is_found_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "load_here.py", ONE)
    monkeypatch.chdir(tmp_path)
    assert load_app("load_here").name == "shop"


def test_a_file_in_a_package_may_import_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "load_project").mkdir()
    write(tmp_path / "load_project", "names.py", "NAME = 'corner'\n")
    write(
        tmp_path / "load_project",
        "load_inside.py",
        "from load_project.names import NAME\nfrom tidemill import App\napp = App(NAME)\n",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    assert load_app("load_project/load_inside.py").name == "corner"


def test_tasks_that_import_their_application_are_declared_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "load_shop_package").mkdir()
    write(tmp_path / "load_shop_package", "load_center.py", ONE + "import load_shop_package.load_tasks\n")
    write(
        tmp_path / "load_shop_package",
        "load_tasks.py",
        "from load_shop_package.load_center import app\n\n@app.task\ndef pack() -> None: ...\n",
    )
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert [*load_app("load_shop_package/load_center.py").declarations.tasks] == ["pack"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "declares no App: add `app = App"),
        ("import no_such_module_at_all\n", "cannot be imported: No module named 'no_such_module_at_all'"),
        ("def broken(:\n", "cannot be imported: SyntaxError"),
        ("1 / 0\n", r"cannot be imported: ZeroDivisionError: division by zero \(load_broken.py, line 1\)$"),
        ("\nimport no_such_module\n", r"No module named 'no_such_module' \(load_broken.py, line 2\)$"),
        (f"{ONE}\n@app.task(cron='x')\ndef f(): ...\n", r"is not a cron expression .* \(load_broken.py, line 4\)$"),
        ("import json\n\njson.loads('{')\n", r"JSONDecodeError: .* \(load_broken.py, line 3\)$"),
        ('from tidemill import App\napp = App("")\n', "is not an application name"),
    ],
)
def test_a_file_that_does_not_give_an_app_says_why(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, "load_broken.py", text)
    with pytest.raises(ConfigError, match=message):
        load_app(path)


def test_a_file_that_failed_to_load_can_be_loaded_when_it_is_mended(tmp_path: Path) -> None:
    path = write(tmp_path, "load_mended.py", "1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        load_app(path)
    write(tmp_path, "load_mended.py", ONE + "# mended\n")
    assert load_app(path).name == "shop"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_file.py", "there is no file no_such_file.py"),
        ("some/where", "there is no file some/where"),
        ("no_such_module_at_all", "no_such_module_at_all cannot be imported"),
        ("", "say which application: app.py"),
        (":app", "say which application: app.py"),
    ],
)
def test_a_target_that_does_not_exist_is_named(target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_app(target)


def test_a_name_that_is_not_an_app_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "load_named.py", ONE + "number = 1\n")
    for name in ("number", "missing"):
        with pytest.raises(ConfigError, match=f"has no App called '{name}'"):
            load_app(f"{path}:{name}")


def test_a_program_that_exits_while_it_is_loaded_is_a_bad_application(tmp_path: Path) -> None:
    path = write(tmp_path, "load_exits.py", "raise SystemExit(3)\n")
    with pytest.raises(ConfigError, match="load_exits"):
        load_app(path)


def test_a_program_that_runs_its_work_while_it_is_loaded_is_refused(tmp_path: Path) -> None:
    """A child process of an isolated task would run all of it, and start a child process of its own."""
    program = "import asyncio\nasync def main():\n    async with app.running():\n        pass\nasyncio.run(main())\n"
    path = write(tmp_path, "load_runs.py", ONE + program)
    with pytest.raises(ConfigError, match=r"load_runs\.py runs its work .* under `if __name__ == '__main__':`"):
        load_app(path)
