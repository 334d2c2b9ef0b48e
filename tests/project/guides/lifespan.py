"""What docs/lifespan.md takes for granted."""


class Mailer:
    """A client of a mail server."""

    def __init__(self, host: str) -> None:
        self.host = host

    async def __aenter__(self) -> "Mailer":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def send(self, text: str) -> str:
        """Say that something was sent."""
        return f"{text} over {self.host}"
