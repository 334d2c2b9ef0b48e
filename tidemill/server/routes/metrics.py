"""`/metrics` for Prometheus."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get

from tidemill.server.server_state import TheServerState


@get("/metrics", opt={"role": "viewer"}, summary="Metrics for Prometheus", media_type="text/plain")
async def get_metrics(server_state: TheServerState, request: Request[Any, Any, Any]) -> Response[bytes]:
    """All metrics, in the format that Prometheus reads."""
    body, kind = await server_state.metrics.text(request.headers.get("accept", ""))
    return Response(body, media_type=kind)


routes = [get_metrics]
