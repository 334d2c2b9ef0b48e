"""gRPC reflection for callers only: of the server, and of the live addresses of streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection


class GuardedReflection(grpc.aio.ServerInterceptor):
    """Lists the services to callers only. `admit` aborts the calls of others."""

    def __init__(self, admit: Callable[[Any], Awaitable[object]]) -> None:
        self._admit = admit

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if reflection.SERVICE_NAME not in handler_call_details.method:
            return handler
        inner = handler.stream_stream

        async def guarded(requests: Any, context: Any) -> None:
            await self._admit(context)
            async for message in inner(requests, context):
                await context.write(message)

        return handler._replace(stream_stream=guarded)
