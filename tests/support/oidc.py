"""A real identity provider in a thread, and a browser that logs in at it."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import flask
import httpx
import oidc_provider_mock
from werkzeug.serving import make_server

from tests.support.web import API


class Provider:
    """The provider: its users have the claims that `set_user` gives them, and it keeps to PKCE."""

    def __init__(self) -> None:
        os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
        self.url = ""
        self.secret_file = ""
        self.app = oidc_provider_mock.app(require_nonce=True)
        self.requests: list[dict[str, str]] = []
        self.challenges: dict[str, str] = {}
        self.app.before_request(self._check_pkce)
        self.app.after_request(self._keep_challenge)

    def set_user(self, sub: str, **claims: Any) -> None:
        httpx.put(f"{self.url}/users/{sub}", json=claims, timeout=150).raise_for_status()

    def _check_pkce(self) -> Any:
        self.requests.append({"path": flask.request.path, **flask.request.args, **flask.request.form})
        if flask.request.path == "/oauth2/token":
            digest = hashlib.sha256(flask.request.form.get("code_verifier", "").encode()).digest()
            sent = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            if self.challenges.pop(flask.request.form.get("code", ""), None) != sent:
                return flask.jsonify(error="invalid_grant", error_description="PKCE"), 400
        return None

    def _keep_challenge(self, response: flask.Response) -> flask.Response:
        code = parse_qs(urlsplit(response.headers.get("location", "")).query).get("code")
        if code and flask.request.args.get("code_challenge_method") == "S256":
            self.challenges[code[0]] = flask.request.args["code_challenge"]
        return response


@contextmanager
def provider() -> Iterator[Provider]:
    made = Provider()
    with tempfile.NamedTemporaryFile("w") as secret, serving(made.app) as made.url:
        secret.write("client secret/%\n")
        secret.flush()
        made.secret_file = secret.name
        yield made


@contextmanager
def serving(app: flask.Flask) -> Iterator[str]:
    """Serve an application in a thread; gives its address."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class ScriptedProvider:
    """A provider whose answers are what a test says, to the byte."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.app = flask.Flask("scripted")
        self.app.add_url_rule("/<path:path>", view_func=self._answer, methods=["GET", "POST"])

    def _answer(self, path: str) -> Any:
        self.asked.append(path)
        return flask.jsonify(self.answers[path])


class Visitor:
    """A browser without pictures: it keeps cookies and follows where it is sent."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.http = httpx.Client(timeout=150)

    def begin(self, next_page: str = "/") -> str:
        """Press the button of the log-in page; returns the provider's address."""
        response = self.http.get(f"{self.server}/login/oidc", params={"next": next_page})
        assert response.status_code == 303, response.text
        return response.headers["location"]

    def consent(self, address: str, sub: str, **more: str) -> str:
        """Log in at the provider; returns the address that it sends the browser back to."""
        response = self.http.post(address, data={"sub": sub, **more})
        assert response.status_code == 302, response.text
        return response.headers["location"]

    def come_back(self, address: str) -> str:
        """Come back from the provider, as browsers do, from another site; returns where the server sends it."""
        response = self.http.get(address, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})
        assert response.status_code == 303, response.text
        return response.headers["location"]

    def log_in(self, sub: str, next_page: str = "/") -> str:
        return self.come_back(self.consent(self.begin(next_page), sub))

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """A request of the console's page."""
        headers = {"Sec-Fetch-Site": "same-origin", "X-CSRF-Token": self.session().get("csrf") or ""}
        return self.http.request(method, f"{self.server}{API}{path}", json=body, headers=headers)

    def session(self) -> dict[str, Any]:
        return self.http.get(f"{self.server}{API}/session").json()
