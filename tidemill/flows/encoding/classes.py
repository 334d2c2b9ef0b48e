"""Find a class by its stored name among the classes that this process has defined. Nothing is imported.

    @renamed_from("Approved")                  stored as shop.Approved, now read as shop.SignedOff
    class SignedOff(Event): ...

A class that was only moved to another module is found by its bare name, if no other class has it.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Set
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from tidemill.core.errors import ConfigError, UnknownClassError

C = TypeVar("C", bound=type)

#: Classes that are stored by name and may not be attributes of a module, such as those defined inside a function.
_remembered: WeakValueDictionary[str, type] = WeakValueDictionary()

#: Classes by the names, bare or qualified, that they had before.
_renamed: WeakValueDictionary[str, type] = WeakValueDictionary()

_INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))

#: The attribute of classes that stand in for those of another version of the application.
STANDS_IN = "__stands_in__"


class OlderClasses(Protocol):
    """The classes of an older version of the application, while its stored values are read."""

    def resolve(self, name: str) -> type:
        """The class of an event."""
        ...

    def model_class(self, name: str) -> type:
        """The class of a pydantic model."""
        ...


older_classes: ContextVar[OlderClasses | None] = ContextVar("older_classes", default=None)


def qualified_name(cls: type) -> str:
    """Return the name under which a class is stored and found."""
    return f"{cls.__module__}.{cls.__qualname__}"


def renamed_from(*names: str) -> Callable[[C], C]:
    """Declare the former names of a class, bare or with their module: what was stored under them is read as this class.

    For events, states, and every class whose values runs hold.
    """
    for name in names:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"renamed_from takes the former names of the class, not {name!r}")
    if not names:
        raise ConfigError("renamed_from needs at least one former name of the class")

    def declare(cls: C) -> C:
        for name in names:
            _renamed[name] = cls
        return cls

    return declare


def renamed_class(name: str) -> type | None:
    """Return the class that had this qualified name before; None if none is known."""
    return _renamed.get(name) or _renamed.get(name.rpartition(".")[2])


def remember_class(cls: type) -> None:
    """Register a class so that it can be found. A redefined class replaces the earlier one."""
    if STANDS_IN not in cls.__dict__:
        _remembered[qualified_name(cls)] = cls


def find_class(name: str, base: type = object) -> type | None:
    """Return the class of this qualified name; None if this process has not defined it. One of its bare name counts
    only if it is a subclass of `base`."""
    return _attribute(name) or _remembered.get(name) or renamed_class(name) or _namesake(name, base)


def loaded_class(name: str) -> Any:
    """Return the class of this qualified name; a `PayloadError` if this process has not defined it."""
    found = find_class(name) or find_class(name.partition("[")[0])  # A generic class without its parameters.
    if found is None:
        raise UnknownClassError(f"class {name} is not defined in this process; import the module that defines it")
    return found


def _attribute(name: str) -> type | None:
    module, _, rest = name.rpartition(".")
    while module:
        found: Any = sys.modules.get(module)
        for part in rest.split("."):
            found = getattr(found, part, None)
        if isinstance(found, type):
            return found
        module, _, part = module.rpartition(".")
        rest = f"{part}.{rest}"
    return None


def _namesake(name: str, base: type) -> type | None:
    """Return the only class of this kind and bare name: the module of a program is `__main__` when the program is run.

    A class of an application has not become one of Tidemill or of a library, nor the other way round."""
    module, _, bare = name.rpartition(".")
    found = {id(cls): cls for cls in _remembered.values() if cls.__qualname__ == bare}
    for each in list(sys.modules.values()):
        cls = getattr(each, "__dict__", {}).get(bare)
        if isinstance(cls, type) and cls.__qualname__ == bare and cls.__module__ == each.__name__:
            found[id(cls)] = cls
    is_own = name.startswith("tidemill.")
    packages = {cls.__module__.partition(".")[0] for cls in _remembered.values()}
    namesakes = [
        cls
        for cls in found.values()
        if issubclass(cls, base)
        and cls.__module__.startswith("tidemill.") == is_own
        and not _is_of_library(cls.__module__.partition(".")[0], packages)
    ]
    if len(namesakes) > 1:
        place = module.rpartition(".")[2]
        namesakes = [cls for cls in namesakes if cls.__module__.rpartition(".")[2] == place]
    return namesakes[0] if len(namesakes) == 1 else None


def _is_of_library(package: str, with_events: Set[str]) -> bool:
    """Return whether a package is an installed one, and none of the application's, which define events."""
    if package in with_events:
        return False
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return package in sys.stdlib_module_names or file.startswith(_INSTALLED)
