"""Live changes over SSE, and live requests to streams."""
