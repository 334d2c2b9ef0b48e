"""Configuration: arguments first, then `TIDEMILL_*` in the environment, then `[tool.tidemill]` in pyproject.toml.

Every value remembers where it came from; `tidemill config` shows it.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
import tomllib
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_type_hints
from urllib.parse import urlsplit

import msgspec

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.core.limits.memory_size import format_memory, parse_memory
from tidemill.core.limits.size_limits import SizeLimits
from tidemill.core.web.address import read_address
from tidemill.engine.outbound_http import read_allowed_hosts
from tidemill.store.database import DatabaseSettings

if TYPE_CHECKING:
    from tidemill.engine.roles.maintenance import MaintenanceSettings
    from tidemill.engine.worker.worker import WorkerSettings

_BINARY = {"GiB": 2**30, "MiB": 2**20}
_SIZES = {"model_memory", "max_payload", "max_state", "max_output"}
_DURATIONS = {"lease_seconds", "heartbeat_seconds", "grace_seconds", "stall_limit", "model_patience", "sample_every"}


class Settings(msgspec.Struct, frozen=True):
    """Everything that can be configured, with its default. Durations may be written as text ("30s")."""

    database_url: str | None = None
    """Your own PostgreSQL; unset means the embedded one."""
    directory: str = ".tidemill"
    """Where the embedded PostgreSQL keeps its data."""
    schema: str = "tidemill"
    """The schema of the installation, and of its first application's tables."""
    application: str | None = None
    """The application that commands without one work on; unset means the only one in the database."""
    pool_size: int = 8
    """How many connections a process keeps for everything but its hot path."""
    transaction_pooler: bool = False
    """Set when a pooler such as PgBouncer in transaction mode is in between."""
    listen_url: str | None = None
    """A direct URL for LISTEN, where `database_url` goes through a pooler."""
    max_concurrency: int = 10
    """How many jobs a worker process runs at once."""
    lease_seconds: float = 15.0
    """How long a silent worker is believed to be alive."""
    heartbeat_seconds: float = 3.0
    """How often a worker renews its lease."""
    grace_seconds: float = 30.0
    """How long a stopping worker waits for its running jobs."""
    stall_limit: float = 60.0
    """How long code may keep the event loop of its process from turning, before the process is ended."""
    max_losses: int = 3
    """How often a process may die while it runs nothing but one run, build or callback, before that is given up."""
    max_payload: int = SizeLimits().max_payload
    """How large the arguments or the result of a job, an event or a message may be ("32 MiB")."""
    max_state: int = SizeLimits().max_state
    """How large the state of an entity that a monitor follows may be."""
    max_output: int = SizeLimits().max_output
    """How large an output may be that a build returns as a whole; those that it yields have no limit."""
    model_memory: int | None = None
    """How much memory the models of a worker process may take together ("8 GB"); unset means no limit."""
    model_patience: float = 30.0
    """How long a job may be passed over for others whose model is loaded; 0 keeps to the order strictly."""
    host_priority: str = "highest"
    """Which priority the workers of this host claim first: highest, or lowest to leave urgent jobs to other hosts."""
    resources: dict[str, float] | None = None
    """What this machine has for tasks that say what they need ("gpu=1 scanner=2"); unset means what is found."""
    keep_days: int = 30
    """How many days finished jobs are kept."""
    metrics: str | None = None
    """Where to serve Prometheus metrics: 127.0.0.1:9464, or only a port."""
    sample_every: float = 5.0
    """How often to sample what this host uses; 0 for never."""
    workflow_folder: str | None = None
    """The folder of workflow files that are run, and that the console's editor may change; unset means none."""
    allow_hosts: tuple[str, ...] = ()
    """Hosts, host:port pairs and networks that requests of workflow files may reach though they are not public."""
    allow_env: tuple[str, ...] = ()
    """Environment variables that workflow files may read as `$env.NAME`."""
    secret_key_file: str | None = None
    """The file of the keys for secrets and payloads; unset means TIDEMILL_SECRET_KEYS, or directory/secret.key."""
    webhook_secret: str | None = None
    """What signs the webhooks of jobs; of several, separated by spaces, all sign. Better from the environment."""
    codec: str | None = None
    """How payloads are stored: encrypt, compress, or module:name of a codec of your own; unset means as they are."""
    log_level: str = "info"
    """debug, info, warning or error."""
    log_format: str = "auto"
    """human, json, or auto: human on a terminal, JSON otherwise."""

    def size_limits(self) -> SizeLimits:
        return SizeLimits(self.max_payload, self.max_state, self.max_output)

    def database(self) -> DatabaseSettings:
        return DatabaseSettings(
            url=self.database_url,
            directory=self.directory,
            schema=self.schema,
            application=self.application,
            pool_size=self.pool_size,
            transaction_pooler=self.transaction_pooler,
            listen_url=self.listen_url,
            codec=self.codec,
            secret_key_file=self.secret_key_file,
        )

    def worker(self, queues: tuple[str, ...], max_concurrency: int | None = None) -> WorkerSettings:
        from tidemill.engine.worker.worker import WorkerSettings  # A command that only reads starts without the worker.

        return WorkerSettings(
            queues=queues,
            max_concurrency=self.max_concurrency if max_concurrency is None else max_concurrency,
            lease_seconds=self.lease_seconds,
            heartbeat_seconds=self.heartbeat_seconds,
            grace_seconds=self.grace_seconds,
            stall_limit=self.stall_limit,
            model_memory=self.model_memory,
            model_patience=self.model_patience,
            host_priority=self.host_priority,
            resources=self.resources or {},
        )

    def maintenance(self) -> MaintenanceSettings:
        from tidemill.engine.roles.maintenance import MaintenanceSettings

        return MaintenanceSettings(
            lease_seconds=self.lease_seconds, silence_seconds=self.heartbeat_seconds * 3, keep_days=self.keep_days
        )


class SettingOptions(TypedDict, total=False):
    """The settings that `App(...)` takes as keywords: those of `Settings` but the application's name."""

    database_url: str | None
    directory: str
    schema: str
    pool_size: int
    transaction_pooler: bool
    listen_url: str | None
    max_concurrency: int
    lease_seconds: Duration
    heartbeat_seconds: Duration
    grace_seconds: Duration
    stall_limit: Duration
    max_losses: int
    max_payload: int | str
    max_state: int | str
    max_output: int | str
    model_memory: int | str | None
    model_patience: Duration
    host_priority: Literal["highest", "lowest"]
    resources: Mapping[str, float] | None
    keep_days: int
    metrics: str | None
    sample_every: Duration
    workflow_folder: str | None
    allow_hosts: Sequence[str]
    allow_env: Sequence[str]
    secret_key_file: str | None
    webhook_secret: str | None
    codec: str | None
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["auto", "human", "json"]


class ResolvedSetting(msgspec.Struct, frozen=True):
    """One setting and where its value came from."""

    name: str
    value: Any
    origin: str

    @property
    def shown(self) -> str:
        """The value for people: a password in a URL is not shown."""
        if self.name.endswith("_url") and isinstance(self.value, str):
            return hide_password(self.value)
        if self.name.endswith("_secret") and self.value is not None:
            return "***"
        if isinstance(self.value, tuple):
            return ", ".join(self.value)
        if isinstance(self.value, dict):
            return ", ".join(f"{name}={amount:g}" for name, amount in self.value.items())
        if self.name in _SIZES and isinstance(self.value, int):
            return next(
                (f"{self.value // size} {unit}" for unit, size in _BINARY.items() if self.value % size == 0),
                format_memory(self.value),
            )
        if isinstance(self.value, bool):
            return str(self.value).lower()
        if isinstance(self.value, float):
            return f"{self.value:g} s"
        return "" if self.value is None else str(self.value)


def find_settings(
    arguments: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> list[ResolvedSetting]:
    """Every setting with its value and origin."""
    environ = os.environ if environ is None else environ
    arguments = {name: value for name, value in (arguments or {}).items() if value is not None}
    project, file = _read_project(folder or Path.cwd())
    known = {field.name: field.default for field in msgspec.structs.fields(Settings)}
    check_names(arguments, known)
    for name in project:
        if name.replace("-", "_") not in known:
            hint = did_you_mean(name.replace("-", "_"), known)
            raise ConfigError(f"{file}: [tool.tidemill] has an unknown setting {name!r}{hint}")
    _warn_of_misspelt(environ, known)
    found = []
    for name, default in known.items():
        variable = f"TIDEMILL_{name.upper()}"
        if name in arguments:
            found.append(ResolvedSetting(name, _typed(name, arguments[name], "argument"), "argument"))
        elif environ.get(variable):
            found.append(ResolvedSetting(name, _typed(name, environ[variable], variable), variable))
        elif name in project or name.replace("_", "-") in project:
            value = project.get(name, project.get(name.replace("_", "-")))
            found.append(ResolvedSetting(name, _typed(name, value, str(file)), str(file)))
        else:
            found.append(ResolvedSetting(name, default, "default"))
    return found


def _warn_of_misspelt(environ: Iterable[str], known: Collection[str]) -> None:
    """Warn of variables that are nearly a setting: without it, a process would work on the embedded database."""
    for variable in environ:
        name = variable.removeprefix("TIDEMILL_").lower()
        if name in known or not variable.startswith("TIDEMILL_"):
            continue
        if close := difflib.get_close_matches(name, known, 1, cutoff=0.9):
            meant = f"did you mean TIDEMILL_{close[0].upper()}?"
            warnings.warn(f"{variable} of the environment is no setting; {meant}", RuntimeWarning, stacklevel=2)


def check_names(arguments: Iterable[str], known: Collection[str] = SettingOptions.__annotations__) -> None:
    """Raise a `ConfigError` for a setting that does not exist."""
    for name in arguments:
        if name not in known:
            hint = did_you_mean(name, known) or f"; the settings are {', '.join(known)}"
            raise ConfigError(f"there is no setting {name!r}{hint}")


def settings_from(found: list[ResolvedSetting]) -> Settings:
    """The settings as one value, checked."""
    settings = Settings(**{item.name: item.value for item in found})
    settings.database().validate()
    if settings.max_losses < 1:
        raise ConfigError(f"max_losses {settings.max_losses}: at least 1 is needed to run anything")
    if settings.metrics is not None:
        read_address(settings.metrics)
    if settings.host_priority not in ("highest", "lowest"):
        raise ConfigError(f"host_priority {settings.host_priority!r} is not one of highest, lowest")
    read_allowed_hosts(settings.allow_hosts)
    if settings.log_level not in ("debug", "info", "warning", "error"):
        raise ConfigError(f"log_level {settings.log_level!r} is not one of debug, info, warning, error")
    if settings.log_format not in ("auto", "human", "json"):
        raise ConfigError(f"log_format {settings.log_format!r} is not one of auto, human, json")
    return settings


def load_settings(**arguments: Any) -> Settings:
    """The settings in force here, with these arguments on top."""
    return settings_from(find_settings(arguments))


def hide_password(url: str) -> str:
    """A database URL that can be shown, wherever in it the password stands."""
    password = urlsplit(url).password
    if password is not None:
        url = url.replace(f":{password}@", ":***@", 1)
    return re.sub(r"(?<=[?&]password=)[^&]*", "***", url)


@functools.cache
def _kinds() -> dict[str, Any]:
    return get_type_hints(Settings)


def _typed(name: str, value: Any, origin: str) -> Any:
    kind = _kinds()[name]
    try:
        if name in _DURATIONS:
            return parse_duration(value, what=name)
        if name in ("allow_hosts", "allow_env") and isinstance(value, str):
            return tuple(filter(None, re.split(r"[\s,]+", value)))
        if name == "resources" and isinstance(value, str):
            named = (each.partition("=") for each in re.split(r"[\s,]+", value) if each)
            value = {resource: amount for resource, _, amount in named}
        if name in _SIZES:
            return parse_memory(value, what=name)
        if kind is bool and isinstance(value, str):
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[value.lower()]
        return msgspec.convert(value, kind, strict=False)
    except (ConfigError, KeyError, msgspec.ValidationError) as error:
        raise ConfigError(f"{name} from {origin}: {value!r} will not do: {error}") from error


@functools.lru_cache(maxsize=8)
def _parse_project(text: str) -> dict[str, Any]:
    return tomllib.loads(text).get("tool", {}).get("tidemill", {})


def _read_project(folder: Path) -> tuple[dict[str, Any], Path | None]:
    for parent in (folder, *folder.parents):
        file = parent / "pyproject.toml"
        if file.is_file():
            try:
                return _parse_project(file.read_text(encoding="utf-8")), file
            except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"{file} cannot be read: {error}") from error
    return {}, None
