"""The pytest plugin, used as its users do: a test suite of an application, run in a process and folder of its own."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.guide import ROOT

SUITE = ROOT / "examples" / "testing"

MISUSE = """
import pytest
from shop import app, send_receipt
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.testing import FakeHttp, FakeLlm, FakeReply


def test_a_failed_assertion_shows_what_is_there(tidemill):
    tidemill.use(app)
    app.enqueue_sync(send_receipt.call(order_id=7))
    with pytest.raises(AssertionError, match=r"no job of send_receipt was enqueued with .*8}; there is:\\n.*7"):
        tidemill.enqueued(send_receipt, order_id=8)
    with pytest.raises(AssertionError, match="send_receipt was enqueued once, with {'order_id': 7}"):
        tidemill.not_enqueued(send_receipt, order_id=7)
    with pytest.raises(AssertionError, match="nothing was published to reviews; there is: nothing"):
        tidemill.published("reviews")


def test_a_misspelt_name_is_an_error_also_where_nothing_is_expected(tidemill):
    tidemill.use(app)
    with pytest.raises(PayloadError, match="there is no argument 'oder_id'; did you mean 'order_id'"):
        tidemill.not_enqueued(send_receipt, oder_id=7)
    with pytest.raises(ConfigError, match="there is no trigger 'wram'.*did you mean 'warm'"):
        tidemill.alerts("wram")
    with pytest.raises(ConfigError, match="there is no monitor or stream 'frigdes'.*did you mean 'fridges'"):
        tidemill.feed("frigdes", [])
    with pytest.raises(ConfigError, match="there is no monitor 'frigdes'.*did you mean 'fridges'"):
        tidemill.catch_notices("frigdes")


def test_events_that_come_too_late_to_replace_a_source_are_refused(tidemill):
    tidemill.use(app)
    with tidemill.running(), pytest.raises(ConfigError, match=r"before `with tidemill.running\\(\\)"):
        tidemill.feed("fridges", [])


def test_a_kit_without_an_application_says_what_to_call(tidemill):
    with pytest.raises(ConfigError, match=r"no application: call tidemill.use\\(app\\)"):
        tidemill.run_until_idle()


def test_each_test_has_a_database_of_its_own(tidemill):
    tidemill.use(app)
    tidemill.not_enqueued(send_receipt)


def test_the_clock_moves_for_python_and_the_database_alike(tidemill):
    import time
    tidemill.use(app)
    real = time.time()
    tidemill.advance("10d")
    assert time.time() - real >= 864000
    app.enqueue_sync(send_receipt.call(order_id=1))
    [job] = tidemill.enqueued(send_receipt)
    assert abs(job.created_at.timestamp() - time.time()) < 60
    assert abs(tidemill.now().timestamp() - time.time()) < 60


def test_a_fake_service_answers_from_its_table():
    from urllib.request import Request, urlopen
    from urllib.error import HTTPError
    with FakeHttp({"/price": {"euro": 12}, "/late": FakeReply(b"later", 503)}) as fake:
        assert urlopen(Request(fake.url + "/price?item=7", data=b'{"item": 7}')).read() == b'{"euro":12}'
        for path, status in {"/late": 503, "/none": 404}.items():
            with pytest.raises(HTTPError) as refused:
                urlopen(fake.url + path)
            assert refused.value.code == status
    assert fake.requests[0].json == {"item": 7}
    with FakeLlm(lambda text: text.upper()) as model:
        body = b'{"messages": [{"role": "user", "content": "tides"}]}'
        assert b'"content":"TIDES"' in urlopen(Request(model.url + "/v1/chat/completions", data=body)).read()
        assert b'"text":"TIDES"' in urlopen(Request(model.url + "/v1/messages", data=body)).read()
"""


def run_pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder, as their author would: the plugin is found by its entry point."""
    known = {point.value for point in importlib.metadata.entry_points(group="pytest11")}
    named = [] if "tidemill.testing.plugin" in known else ["-p", "tidemill.testing.plugin"]  # an older installation
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        *named,
        "-o",
        "asyncio_mode=auto",
        "-c",
        os.devnull,
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TIDEMILL_"))}
    environment = {**kept, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    url = os.environ.get("TIDEMILL_TEST_DATABASE_URL")
    if url:
        environment["TIDEMILL_TEST_DATABASE_URL"] = url
    words += ["-c", os.devnull, "--rootdir", str(folder), str(folder)]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=400, check=False)


def test_the_example_suite_passes_and_failures_say_what_happened(tmp_path: Path) -> None:
    shutil.copytree(SUITE, tmp_path / "shop", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "shop" / "test_misuse.py").write_text(MISUSE)
    done = run_pytest(tmp_path / "shop")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "18 passed" in done.stdout, done.stdout
