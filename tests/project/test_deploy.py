"""The files of `deploy/` fit Kubernetes, systemd and the command line, and roles answer the probes that they name."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.cli import Process, asked_until, run
from tests.support.guide import ROOT
from tests.support.ports import free_port

DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
APP = "from tidemill import App\napp = App('shop')\n@app.task\nasync def work() -> None: ...\n"


def commands() -> list[list[str]]:
    """Every command that starts a role, of all files."""
    found = [each["command"] for each in compose()["services"].values() if "command" in each]
    for path in MANIFESTS:
        for each in yaml.safe_load_all(path.read_text()):
            if each["kind"] == "Deployment":
                found.append(each["spec"]["template"]["spec"]["containers"][0]["args"])
    return found + [re.findall(r"^ExecStart=\S+ (.*)$", path.read_text(), re.MULTILINE)[0].split() for path in UNITS]


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_is_valid(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    for each in documents:
        kubernetes_validate.validate(each, "1.33", strict=True)
    assert documents


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_is_valid(path: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    unit = tmp_path / path.name
    text = path.read_text().replace("/srv/tidemill/.venv/bin/tidemill", shutil.which("true") or "/bin/true")
    unit.write_text(text.replace("User=tidemill", "User=root"))
    checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    said = [line for line in checked.stderr.splitlines() if path.name in line]
    assert said == [], checked.stderr


def test_every_command_of_the_files_is_understood(tmp_path: Path) -> None:
    for words in {tuple(words) for words in commands()}:
        shown = run(tmp_path, words[0], "--help")
        assert shown.returncode == 0, words
        for option in (word for word in words if word.startswith("--")):
            assert option in shown.stdout, words


def test_the_template_of_new_applications_has_the_same_roles() -> None:
    template = yaml.safe_load((ROOT / "tidemill" / "cli" / "run" / "template" / "compose.yaml").read_text())
    assert compose()["services"].keys() <= template["services"].keys()


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_role_answers_the_probes(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    address = f"127.0.0.1:{free_port()}"
    there = {"TIDEMILL_DATABASE_URL": database_url, "TIDEMILL_METRICS": address}
    with contextlib.closing(Process(tmp_path, "worker", "app.py", "--only", "jobs", **there)) as worker:
        worker.line("worker started")
        for path in ("/livez", "/readyz", "/metrics"):
            asked_until(lambda path=path: status_of(f"http://{address}{path}"), lambda status: status == 200)
        assert status_of(f"http://{address}/other") == 404
