"""Resources: objects that steps need besides their events, created once and injected into steps.

    def get_client() -> Client: ...

    async def fetch(self, ev: StartEvent, client: Annotated[Client, Resource(get_client)]) -> StopEvent
    async def score(self, ev: Scored, limits: Annotated[Limits, ResourceConfig("limits.json")]) -> StopEvent

A factory may be async, and may itself need resources. The workflow caches the resource and shares it among all its
steps and runs; with `cache=False` each call of a step gets a new one. A `ResourceConfig` reads a JSON file, or a
part of it (`path_selector="models.small"`), into the pydantic model that the parameter is annotated with.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Annotated, Any, Protocol, get_args, get_origin, get_type_hints

import msgspec

from tidemill.flows.errors import ResourceCycleError, ResourceFileError, ResourceFileMissingError


class ResourceDescriptor(Protocol):
    """The interface of a resource: its name, its cache key, its dependencies, and how to create it."""

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> Hashable: ...

    @property
    def cache(self) -> bool: ...

    def bind(self, kind: Any, namespace: dict[str, Any] | None) -> None:
        """Set the parameter's annotation and the namespace in which names of annotations are resolved."""
        ...

    def dependencies(self) -> list[ResourceDefinition]: ...

    def make(self, needed: dict[str, Any]) -> Any:
        """Create the resource, or return an awaitable of it."""
        ...


class ResourceDefinition(msgspec.Struct, frozen=True):
    """A parameter of a step or factory into which a resource is injected."""

    name: str
    resource: Any
    type_annotation: Any = None


class FactoryResource:
    """A resource that a function creates."""

    def __init__(self, factory: Callable[..., Any], cache: bool) -> None:
        self.factory = factory
        self.cache = cache
        self._namespace: dict[str, Any] | None = None
        self._dependencies: list[ResourceDefinition] | None = None

    @property
    def name(self) -> str:
        return getattr(self.factory, "__qualname__", type(self.factory).__qualname__)

    @property
    def key(self) -> Hashable:
        return self.factory

    def bind(self, kind: Any, namespace: dict[str, Any] | None) -> None:
        self._namespace = namespace

    def dependencies(self) -> list[ResourceDefinition]:
        if self._dependencies is None:
            self._dependencies = list(_resources_asked_for(self.factory, self._namespace))
        return self._dependencies

    def make(self, needed: dict[str, Any]) -> Any:
        return self.factory(**needed)


class ConfigResource:
    """A resource that is read from a JSON file."""

    cache = True

    def __init__(self, config_file: str, path_selector: str | None, label: str | None, description: str | None) -> None:
        if Path(config_file).suffix != ".json":
            raise ResourceFileError(
                f"Only JSON files can be used to load Pydantic-based resources: {config_file} is not a .json file"
            )
        self.config_file = config_file
        self.path_selector = path_selector
        self.label = label
        self.description = description
        self.model: Any = None

    @property
    def name(self) -> str:
        return f"{self.config_file}.{self.path_selector}" if self.path_selector else self.config_file

    @property
    def key(self) -> Hashable:
        return (self.config_file, self.path_selector, self.model)

    def bind(self, kind: Any, namespace: dict[str, Any] | None) -> None:
        self.model = kind

    def dependencies(self) -> list[ResourceDefinition]:
        return []

    def make(self, needed: dict[str, Any]) -> Any:
        return self.load()

    def load(self) -> Any:
        """Read and validate the file."""
        if not hasattr(self.model, "model_validate"):
            raise ResourceFileError(f"{self.config_file}: {self.model!r} is not a pydantic model to read it into")
        try:
            document = json.loads(Path(self.config_file).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ResourceFileMissingError(
                f"No such file: {self.config_file}; it cannot be read from {Path.cwd()}"
            ) from error
        except OSError as error:
            raise ResourceFileError(f"{self.config_file} cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise ResourceFileError(f"{self.config_file} is not valid JSON: {error}") from error
        for part in self.path_selector.split(".") if self.path_selector else ():
            document = document.get(part) if isinstance(document, dict) else None
        if not isinstance(document, dict):
            where = f" at path {self.path_selector}" if self.path_selector else ""
            raise ResourceFileError(
                f"Expected dictionary for configuration from {self.config_file}{where}, got: {document!r:.80}"
            )
        return self.model.model_validate(document)


def Resource(factory: Callable[..., Any], cache: bool = True) -> FactoryResource:
    """Inject what the factory creates; use it inside `Annotated`."""
    return FactoryResource(factory, cache)


def ResourceConfig(
    config_file: str, path_selector: str | None = None, label: str | None = None, description: str | None = None
) -> ConfigResource:
    """Inject a pydantic model that is read from a JSON file; use it inside `Annotated`."""
    return ConfigResource(config_file, path_selector, label, description)


def resource_definition(name: str, annotation: Any, namespace: dict[str, Any] | None) -> ResourceDefinition | None:
    """Return the resource in a parameter's annotation; None if there is none."""
    if get_origin(annotation) is not Annotated:
        return None
    kind, *marks = get_args(annotation)
    for mark in marks:
        if isinstance(mark, FactoryResource | ConfigResource):
            mark.bind(kind, namespace)
            return ResourceDefinition(name=name, resource=mark, type_annotation=kind)
    return None


def _resources_asked_for(factory: Callable[..., Any], namespace: dict[str, Any] | None) -> Iterable[ResourceDefinition]:
    # The names of the factory's own module win over those around the step that needs it.
    own = getattr(inspect.unwrap(factory), "__globals__", {})
    local = None if namespace is None else {name: value for name, value in namespace.items() if name not in own}
    try:
        hints = get_type_hints(factory, localns=local, include_extras=True)
    except (NameError, TypeError):
        return
    for name, annotation in hints.items():
        if name != "return" and (found := resource_definition(name, annotation, namespace)):
            yield found


def check_for_cycles(resource: ResourceDescriptor, path: tuple[ResourceDescriptor, ...] = ()) -> None:
    """Raise a `ResourceCycleError` if the resource depends on itself."""
    path = (*path, resource)
    if any(earlier.key == resource.key for earlier in path[:-1]):
        names = " -> ".join(step.name for step in path)
        raise ResourceCycleError(f"Circular resource dependency detected: {names}; a resource cannot need itself")
    for needed in resource.dependencies():
        check_for_cycles(needed.resource, path)


class ResourceManager:
    """Caches the resources of a workflow: each is created once, on first use, also with concurrent steps."""

    def __init__(self) -> None:
        self._given: dict[str, Any] = {}
        self._made: dict[Hashable, Any] = {}
        self._names: dict[Hashable, str] = {}
        self._making: dict[Hashable, asyncio.Lock] = {}
        self._checked: set[Hashable] = set()

    async def set(self, name: str, val: Any) -> None:
        """Use this value for the resource of this name instead of calling its factory."""
        self._given[name] = val

    async def get(self, resource: ResourceDescriptor) -> Any:
        """Return the resource; creates it if it is not cached."""
        return await self._get(resource, {})

    async def get_for_call(self, definitions: Iterable[ResourceDefinition]) -> dict[str, Any]:
        """Return all resources for one call of a step, by parameter name."""
        call: dict[Hashable, Any] = {}
        return {one.name: await self._get(one.resource, call) for one in definitions}

    def get_all(self) -> dict[str, Any]:
        """Return the cached resources by name."""
        return {self._names[key]: value for key, value in self._made.items()} | self._given

    async def _get(self, resource: ResourceDescriptor, call: dict[Hashable, Any]) -> Any:
        if resource.name in self._given:
            return self._given[resource.name]
        key = resource.key
        if key not in self._checked:
            # Check before taking a lock: two resources that need each other would deadlock.
            check_for_cycles(resource)
            self._checked.add(key)
        if not resource.cache:
            if key not in call:
                call[key] = await self._make(resource, call)
            return call[key]
        if key in self._made:
            return self._made[key]
        async with self._making.setdefault(key, asyncio.Lock()):
            try:
                if key not in self._made:
                    self._made[key] = await self._make(resource, call)
                    self._names[key] = resource.name
            finally:
                self._making.pop(key, None)
        return self._made[key]

    async def _make(self, resource: ResourceDescriptor, call: dict[Hashable, Any]) -> Any:
        needed = {one.name: await self._get(one.resource, call) for one in resource.dependencies()}
        made = resource.make(needed)
        return await made if inspect.isawaitable(made) else made
