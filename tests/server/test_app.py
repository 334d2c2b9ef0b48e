"""The site as it is declared: what Litestar says of it before anybody asks anything."""

from __future__ import annotations

import json
import warnings

from apps.classroom.monitor import classroom, production
from apps.classroom.routes import classroom_page
from apps.content.page import page as content_page
from tests.support.web_app import make_app
from tidemill.server.app import build, write_document
from tidemill.server.fair_pool import FairDatabase
from tidemill.server.server_state import ServerState
from tidemill.server.settings import ServerSettings
from tidemill.store.database import DatabaseSettings


async def test_every_handler_is_declared_as_litestar_will_still_take_it() -> None:
    app = make_app()
    app.add_page(classroom_page(classroom(production("http://127.0.0.1:1", "", ""))))
    app.add_page(content_page)
    server_state = ServerState(app, FairDatabase(DatabaseSettings(), label="test"), ServerSettings())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # What is deprecated now is refused by its next version.
        build(server_state)
        document = json.loads(write_document())
    assert len(document["paths"]) > 80
