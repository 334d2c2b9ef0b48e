"""Finds a stream by name in the program or configuration file that declares it."""

from __future__ import annotations

from tidemill.core.errors import ConfigError
from tidemill.engine.application.load_app import load_module
from tidemill.streams.definition.config import is_config, read_config
from tidemill.streams.definition.stream import DECLARED, Stream


def find_stream(target: str, name: str) -> Stream:
    """Load the program or file, then look the stream up."""
    if is_config(target):
        for stream in read_config(target):
            DECLARED[stream.name] = stream
    elif target:
        load_module(target.partition(":")[0])
    found = DECLARED.get(name)
    if found is None:
        raise ConfigError(
            f"{target or 'this program'} declares no stream {name!r} when it is imported: "
            "make it at the top level of the module, where an engine can find it"
        )
    return found
