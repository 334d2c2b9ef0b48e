"""`tidemill config`: every setting, its value, and where that came from."""

from __future__ import annotations

from tidemill.cli.arguments import Json
from tidemill.cli.connection_options import ANYWHERE, SERVER, ServerOptions
from tidemill.cli.render import out, print_json, table
from tidemill.engine.settings import ResolvedSetting, find_settings, hide_password, settings_from


def config(*, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """Show every setting and where its value came from."""
    found = find_settings(connection.given())
    settings_from(found)
    if connection.server_url is not None:
        found.append(
            ResolvedSetting("server", hide_password(connection.server_url), "argument" if connection.server else SERVER)
        )
    if json:
        shown = [item.shown if item.name.endswith(("_url", "_secret")) and item.value else item.value for item in found]
        return print_json(
            [
                {"name": item.name, "value": value, "origin": item.origin}
                for item, value in zip(found, shown, strict=True)
            ]
        )
    made = table("setting", "value", "from", wide="value")
    for item in found:
        made.add_row(item.name, item.shown, item.origin, style="dim" if item.origin == "default" else None)
    return out().print(made)
