"""Streams as configuration: the same options as in Python, in YAML or TOML.

streams:
  posts:
    engines: 2
    max_concurrency: 512
    plans: [apps.content.plans:SpamPlan]
    sources:
      - {type: kafka, topic: unified_posts, weight: 8, max_qps: 500, eligibilities: [spam_comment]}
    sinks:
      - {type: kafka, topic: verdicts}
    plan_settings:
      SpamPlan: {rate: 200/s, disabled_for: [recovery_*]}
"""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.sinks import sink_kinds
from tidemill.sources import source_kinds
from tidemill.streams.definition.stream import Stream

_SUFFIXES = (".yaml", ".yml", ".toml")


def is_config(target: str) -> bool:
    """Whether a file is configuration and not a program."""
    return target.endswith(_SUFFIXES)


def read_config(file: str | Path) -> list[Stream]:
    """The streams that a file declares."""
    import yaml  # Every process loads this module, and few read files.

    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
        read = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except (tomllib.TOMLDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    declared = read.get("streams") if isinstance(read, dict) else None
    if not isinstance(declared, dict) or not declared:
        raise ConfigError(f"{path} declares no streams: write them under `streams:`, each by its name")
    return [stream_of(name, options, str(path)) for name, options in declared.items()]


def stream_of(name: str, options: Any, where: str) -> Stream:
    """One stream from its options."""
    if not isinstance(options, dict):
        raise ConfigError(f"{where}: stream {name}: its options must be written as names and values")
    options = dict(options)
    place = f"{where}: stream {name}"
    plans = [resolve(each, place) for each in _listed(options.pop("plans", []), f"{place}, plans")]
    sources = [_source(each, place) for each in _listed(options.pop("sources", []), f"{place}, sources")]
    sinks = [
        _declared(each, sink_kinds(), "sink", place) for each in _listed(options.pop("sinks", []), f"{place}, sinks")
    ]
    if "live_decoder" in options:
        options["live_decoder"] = resolve(options["live_decoder"], place)
    try:
        stream = Stream(name, sources=sources, plans=plans, sinks=sinks, **options)
    except TypeError as error:
        raise ConfigError(f"{place}: {str(error).partition(') ')[2] or error}") from error
    stream.declared_in = where
    return stream


def resolve(name: Any, where: str) -> Any:
    """The object that `package.module:name` names."""
    module, colon, attribute = str(name).partition(":")
    if not colon:
        raise ConfigError(f"{where}: {name!r} is not written as package.module:name")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{where}: {name} cannot be found: {error}") from error


def _source(options: Any, where: str) -> Any:
    if isinstance(options, dict) and "decoder" in options:
        options = {**options, "decoder": resolve(options["decoder"], where)}
    return _declared(options, source_kinds(), "source", where)


def _declared(options: Any, kinds: Mapping[str, type[Any]], what: str, where: str) -> Any:
    """A source or sink from its type and options."""
    if not isinstance(options, dict):
        raise ConfigError(f"{where}: a {what} is written as names and values, such as {{type: log, topic: posts}}")
    options = dict(options)
    kind = kinds.get(options.pop("type", None))
    if kind is None:
        raise ConfigError(f"{where}: a {what} needs a type, one of {', '.join(kinds)}")
    known = {field.name for field in msgspec.structs.fields(kind)}
    for option in options:
        if option not in known:
            raise ConfigError(f"{where}: a {kind.__name__} has no option {option!r}; it has {', '.join(sorted(known))}")
    try:
        return kind(**options)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error


def _listed(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ConfigError(f"{where}: must be a list")
    return value
