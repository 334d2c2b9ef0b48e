"""What both gRPC servers have, that of operations and that of a stream: health checks, and reflection for callers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
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


@asynccontextmanager
async def running_server(server: grpc.aio.Server, services: Sequence[str], *, grace: float) -> AsyncIterator[Any]:
    """Run a server of these services, with health checks and reflection, while the block lasts; gives the checks."""
    healthy = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] - is there at run time
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    reflection.enable_server_reflection((*services, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    for name in ("", *services):
        await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
    await server.start()
    try:
        yield healthy
    finally:
        await healthy.enter_graceful_shutdown()
        await server.stop(grace)
