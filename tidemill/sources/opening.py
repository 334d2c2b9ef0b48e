"""Opens a declared source the way its user reads it: as a consumer for a stream, as a reader for a monitor."""

from __future__ import annotations

from tidemill.core.errors import ConfigError
from tidemill.sources.base import Consumer, HasConsumer, HasReader, PageReader, PartitionReader, Source, SourceContext
from tidemill.sources.consumer_reader import ConsumerReader


def open_consumer(source: Source, context: SourceContext) -> Consumer:
    """A consumer of this source, for a stream."""
    if not isinstance(source, HasConsumer):
        raise ConfigError(f"source {source.name}: {type(source).__name__} has no consumer(context)")
    return source.consumer(context)


def open_reader(source: Source | PageReader | PartitionReader, context: SourceContext) -> PageReader | PartitionReader:
    """A reader of this source, for a monitor; a reader of the user's own is used as it is."""
    if not isinstance(source, Source):
        return source
    if isinstance(source, HasReader):
        return source.reader(context)
    if isinstance(source, HasConsumer):
        return ConsumerReader(lambda: source.consumer(context), source.page)
    raise ConfigError(
        f"source {source.name}: {type(source).__name__} has neither reader(context) nor consumer(context)"
    )
