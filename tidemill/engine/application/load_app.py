"""Finding the application: `app.py`, `app.py:name`, `package.module` or `package.module:name`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Set
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.user_traceback import user_line

#: The place that is being imported.
_loading: ContextVar[str | None] = ContextVar("tidemill_loading", default=None)


def load_app(target: str) -> Any:
    """Import the application that a command line names; it must hold exactly one `App`, unless the name says which."""
    place, _, name = target.partition(":")
    if not place:
        raise ConfigError("say which application: app.py, app.py:name or package.module")
    module = load_module(place)
    if name:
        found = getattr(module, name, None)
        if not is_app(found):
            known = sorted(key for key, value in vars(module).items() if is_app(value))
            has = f"; it has {', '.join(known)}" if known else ' and no other: add `app = App("name")`'
            raise ConfigError(f"{place} has no App called {name!r}{has}")
        return found
    apps = {id(value): (key, value) for key, value in vars(module).items() if is_app(value)}
    if not apps:
        raise ConfigError(f'{place} declares no App: add `app = App("name")`')
    if len(apps) > 1:
        names = ", ".join(sorted(key for key, _ in apps.values()))
        raise ConfigError(f"{place} declares several Apps ({names}): say which, as in {place}:{names.split(', ')[0]}")
    return next(iter(apps.values()))[1]


def is_app(value: object) -> bool:
    return any(cls.__module__ == "tidemill.app" and cls.__name__ == "App" for cls in type(value).__mro__)


def load_module(place: str) -> ModuleType:
    """Import a file or a module, once."""
    path = Path(place)
    is_file = path.suffix == ".py" or "/" in place
    if is_file and not path.is_file():
        near = [each.name for each in path.parent.glob("*.py")]
        raise ConfigError(f"there is no file {place}{did_you_mean(path.name, near)}")
    if is_file:
        path = path.resolve()
        loaded = sys.modules.get(path.stem)
        if loaded is not None and getattr(loaded, "__file__", None) == str(path):
            return loaded
        folder = str(path.parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        if "" not in sys.path:
            sys.path.append("")  # A file in a package imports the package, from the folder of the project.
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{place} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        before = set(sys.modules)
        sys.modules[path.stem] = module
        return _by_its_package(_execute(place, lambda: _run(spec, module)), path, before)
    if "" not in sys.path:
        sys.path.insert(0, "")
    return _execute(place, lambda: importlib.import_module(place))


def refuse_while_loading() -> None:
    """Raise a `ConfigError` in a program that would run here although it is only imported for what it declares.

    A process that is started for the program's own work would do the same, and start another one.
    """
    if (place := _loading.get()) is not None:
        raise ConfigError(
            f"{place} runs its work while it is imported for its tasks: call what runs it under "
            "`if __name__ == '__main__':`"
        )


def _by_its_package(module: ModuleType, path: Path, before: Set[str]) -> ModuleType:
    """The module as the modules that it imports have imported it: their tasks are declared on that one.

    Modules from `before` do not count: a module's name is part of a stage's code, and must not depend on its caller.
    """
    new = [each for name, each in list(sys.modules.items()) if name not in before and each is not module]
    found = next((each for each in new if getattr(each, "__file__", None) == str(path)), module)
    sys.modules[path.stem] = found
    return found


def _run(spec: Any, module: ModuleType) -> ModuleType:
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(module.__name__, None)
        raise
    return module


def _execute(place: str, load: Any) -> ModuleType:
    outer = _loading.set(place)
    try:
        return load()
    except TidemillError as error:
        if len(error.args) == 1:  # Those of more are made from other things than their message.
            error.args = (f"{error.args[0]}{user_line(error)}",)
        raise
    except ModuleNotFoundError as error:
        is_meant = error.name == place.partition(".")[0]
        hint = "; write the application as app.py, app.py:name or package.module" if is_meant else ""
        raise ConfigError(f"{place} cannot be imported: {error}{hint or user_line(error)}") from error
    except (Exception, SystemExit) as error:
        line = "" if isinstance(error, SyntaxError) else user_line(error)  # It says its line itself.
        raise ConfigError(f"{place} cannot be imported: {type(error).__name__}: {error}{line}") from error
    finally:
        _loading.reset(outer)
