"""Other build tools, each with the same two stages; each is installed into a virtual environment of its own.

None can build 10 000 entities in the time that there is: each says how many it is given, and a figure of ours for as
many stands beside its own. Only ninja checks all of them, as ours has built them.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.shared.venv import ROOT

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
INSTALL_TIMEOUT_S = 600

LUIGI = """
import luigi

class Source(luigi.ExternalTask):
    id = luigi.Parameter()
    def output(self):
        return luigi.LocalTarget(f"in/{self.id}.txt")

class First(luigi.Task):
    id = luigi.Parameter()
    def requires(self):
        return Source(self.id)
    def output(self):
        return luigi.LocalTarget(f"mid/{self.id}.txt")
    def run(self):
        with self.input().open() as source, self.output().open("w") as target:
            target.write(source.read().upper())

class Second(luigi.Task):
    id = luigi.Parameter()
    def requires(self):
        return First(self.id)
    def output(self):
        return luigi.LocalTarget(f"out/{self.id}.txt")
    def run(self):
        with self.input().open() as source, self.output().open("w") as target:
            target.write(source.read() + "!")

luigi.build([Second(str(n)) for n in range(COUNT)], local_scheduler=True, log_level="ERROR")
"""

SNAKEFILE = """
rule all:
    input: expand("out/{n}.txt", n=range(COUNT))
rule first:
    input: "in/{n}.txt"
    output: "mid/{n}.txt"
    shell: "tr a-z A-Z < {input} > {output}"
rule second:
    input: "mid/{n}.txt"
    output: "out/{n}.txt"
    shell: "(cat {input}; printf !) > {output}"
"""

REDUN = """
from redun import File, task

redun_namespace = "bench"

@task()
def first(source: File, target: str) -> File:
    made = File(target)
    made.write(source.read().upper())
    return made

@task()
def second(source: File, target: str) -> File:
    made = File(target)
    made.write(source.read() + "!")
    return made

@task()
def main() -> list:
    return [second(first(File(f"in/{n}.txt"), f"mid/{n}.txt"), f"out/{n}.txt") for n in range(COUNT)]
"""

DAGSTER = """
from dagster import DynamicOut, DynamicOutput, job, op

@op(out=DynamicOut())
def entities():
    for n in range(COUNT):
        yield DynamicOutput(n, mapping_key=str(n))

@op
def first(n):
    open(f"mid/{n}.txt", "w").write(open(f"in/{n}.txt").read().upper())
    return n

@op
def second(n):
    open(f"out/{n}.txt", "w").write(open(f"mid/{n}.txt").read() + "!")

@job
def copies():
    entities().map(lambda n: second(first(n)))

if __name__ == "__main__":
    import logging
    logging.disable(logging.CRITICAL)
    assert copies.execute_in_process(run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}).success
"""


class Peer(msgspec.Struct, frozen=True):
    """A build tool: how many entities it is given, and how it is prepared and started in a folder."""

    name: str
    most: int
    prepare: Callable[[Path, int, Path], None]
    command: Callable[[Path], list[str]]
    checks: bool = True
    """Whether it is run again to see what a check costs: not where that says nothing, or is measured otherwise."""

    @property
    def programs(self) -> Path:
        return ROOT / ".bench" / f"venv-pipelines-{self.name}" / "bin"

    def find(self) -> str | None:
        """Install it if need be; returns why that cannot be, if so."""
        if (self.programs / "installed").exists():
            return None
        (pinned,) = [line for line in REQUIREMENTS.read_text().splitlines() if line.startswith(f"{self.name}==")]
        subprocess.run([sys.executable, "-m", "venv", str(self.programs.parent)], check=True, timeout=INSTALL_TIMEOUT_S)
        pip = [str(self.programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", pinned]
        try:
            done = subprocess.run(pip, timeout=INSTALL_TIMEOUT_S, check=False, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return f"{pinned} was not installed within {INSTALL_TIMEOUT_S} s"
        if done.returncode:
            return f"{pinned} cannot be installed: {done.stderr.strip().splitlines()[-1]}"
        (self.programs / "installed").touch()
        return None

    def run(self, root: Path, patience: float) -> None:
        done = subprocess.run(
            self.command(self.programs), cwd=root, env=self._environment(root), capture_output=True, text=True,
            timeout=patience, check=False,
        )  # fmt: skip
        if done.returncode:
            raise OSError(f"{self.name} ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-300:]}")

    def _environment(self, root: Path) -> dict[str, str]:
        """Nothing is reported, and nothing is stored outside the folder."""
        quiet = {"DAGSTER_DISABLE_TELEMETRY": "yes", "DVC_NO_ANALYTICS": "1", "HOME": str(root)}
        return {**os.environ, **quiet, "PATH": f"{self.programs}:{os.environ['PATH']}"}


def prepare_ninja(root: Path, count: int, _: Path, *, is_built: bool = False) -> None:
    """`is_built`: for a check only, of files that another tool has built. A generator's outputs are not looked up in
    the log of builds: ninja has less to do, and need not start 200 000 processes first."""
    told = [" generator = 1"] if is_built else []
    lines = ["rule up", " command = tr a-z A-Z < $in > $out", *told]
    lines += ["rule ex", " command = (cat $in; printf !) > $out", *told]
    for number in range(count):
        lines += [f"build mid/{number}.txt: up in/{number}.txt", f"build out/{number}.txt: ex mid/{number}.txt"]
    (root / "build.ninja").write_text("\n".join(lines) + "\n")


def _script(name: str, text: str) -> Callable[[Path, int, Path], None]:
    def prepare(root: Path, count: int, _: Path) -> None:
        (root / name).write_text(text.replace("COUNT", str(count)))

    return prepare


def prepare_dvc(root: Path, count: int, programs: Path) -> None:
    every = list(range(count))
    stages = ""
    for name, command, source, target in (
        ("first", "tr a-z A-Z < in/${item}.txt > mid/${item}.txt", "in", "mid"),
        ("second", "(cat mid/${item}.txt; printf !) > out/${item}.txt", "mid", "out"),
    ):
        stages += f"  {name}:\n    foreach: {every}\n    do:\n      cmd: {command}\n"
        stages += f'      deps: ["{source}/${{item}}.txt"]\n      outs: ["{target}/${{item}}.txt"]\n'
    (root / "dvc.yaml").write_text("stages:\n" + stages)
    subprocess.run([str(programs / "dvc"), "init", "-q", "--no-scm"], cwd=root, check=True, timeout=120)


PEERS = {
    peer.name: peer
    for peer in (
        Peer("ninja", 1000, prepare_ninja, lambda programs: [str(programs / "ninja"), "--quiet"], checks=False),
        Peer("luigi", 1000, _script("tasks.py", LUIGI), lambda programs: [str(programs / "python"), "tasks.py"]),
        Peer(
            "snakemake", 300, _script("Snakefile", SNAKEFILE),
            lambda programs: [str(programs / "snakemake"), "--cores", "2", "--quiet", "all"],
        ),
        Peer("dvc", 50, prepare_dvc, lambda programs: [str(programs / "dvc"), "repro", "-q"]),
        Peer(
            "redun", 200, _script("flow.py", REDUN),
            lambda programs: [str(programs / "redun"), "run", "flow.py", "main"],
        ),
        Peer(
            "dagster", 300, _script("flow.py", DAGSTER), lambda programs: [str(programs / "python"), "flow.py"],
            checks=False,
        ),
    )
}  # fmt: skip
