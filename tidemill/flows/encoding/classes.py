"""Find a class by its stored name among the classes that this process has defined. Nothing is imported."""

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakValueDictionary

from tidemill.core.errors import PayloadError

#: Classes that are stored by name and may not be attributes of a module, such as those defined inside a function.
_remembered: WeakValueDictionary[str, type] = WeakValueDictionary()


def qualified_name(cls: type) -> str:
    """Return the name under which a class is stored and found."""
    return f"{cls.__module__}.{cls.__qualname__}"


def remember_class(cls: type) -> None:
    """Register a class so that it can be found. A redefined class replaces the earlier one."""
    _remembered[qualified_name(cls)] = cls


def find_class(name: str) -> type | None:
    """Return the class of this qualified name; None if this process has not defined it."""
    return _attribute(name) or _remembered.get(name) or _namesake(name)


def loaded_class(name: str) -> Any:
    """Return the class of this qualified name; a `PayloadError` if this process has not defined it."""
    found = find_class(name) or find_class(name.partition("[")[0])  # A generic class without its parameters.
    if found is None:
        raise PayloadError(f"class {name} is not defined in this process; import the module that defines it")
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


def _namesake(name: str) -> type | None:
    """Return the only class of this bare name: the module of a program is `__main__` when the program is run."""
    module, _, bare = name.rpartition(".")
    found = {id(cls): cls for cls in _remembered.values() if cls.__qualname__ == bare}
    for each in list(sys.modules.values()):
        cls = getattr(each, "__dict__", {}).get(bare)
        if isinstance(cls, type) and cls.__qualname__ == bare and cls.__module__ == each.__name__:
            found[id(cls)] = cls
    namesakes = list(found.values())
    if len(namesakes) > 1:
        place = module.rpartition(".")[2]
        namesakes = [cls for cls in namesakes if cls.__module__.rpartition(".")[2] == place]
    return namesakes[0] if len(namesakes) == 1 else None
