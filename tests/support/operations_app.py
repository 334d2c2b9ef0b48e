"""The application whose server does every operation in tests: that of `web_app`, and a monitor."""

from __future__ import annotations

from tests.support.web_app import app, make_ovens

app.monitor(make_ovens())
