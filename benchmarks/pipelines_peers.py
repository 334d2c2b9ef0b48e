"""Other build tools, each with the same two stages; installed into a virtual environment of their own."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.venv import ROOT

DIRECTORY = ROOT / ".bench" / "venv-pipelines"
REQUIREMENTS = Path(__file__).with_name("pipeline_peers.txt")
INSTALL_TIMEOUT_S = 600

LUIGI = """
import sys, luigi

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

luigi.build([Second(str(n)) for n in range(int(sys.argv[1]))], local_scheduler=True, log_level="ERROR")
"""

SNAKEFILE = """
N = {count}
rule all:
    input: expand("out/{{n}}.txt", n=range(N))
rule first:
    input: "in/{{n}}.txt"
    output: "mid/{{n}}.txt"
    run:
        open(output[0], "w").write(open(input[0]).read().upper())
rule second:
    input: "mid/{{n}}.txt"
    output: "out/{{n}}.txt"
    run:
        open(output[0], "w").write(open(input[0]).read() + "!")
"""


class Peer(msgspec.Struct, frozen=True):
    """A build tool. `most` is how many entities it is given; `program` is what it is started by."""

    name: str
    program: str
    most: int
    prepare: Callable[[Path, int], None]
    command: Callable[[str, Path], list[str]]

    def find(self) -> str | None:
        """Where it is, after installing it if need be."""
        program = DIRECTORY / "bin" / self.program
        if not program.exists():
            install(self.name)
        return str(program) if program.exists() else None

    def run(self, executable: str, root: Path, patience: float) -> None:
        done = subprocess.run(
            self.command(executable, root), cwd=root, capture_output=True, text=True, timeout=patience, check=False
        )
        if done.returncode:
            raise OSError(f"{self.name} ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-300:]}")


def install(name: str) -> None:
    """Install one peer, as it is pinned."""
    if not (DIRECTORY / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(DIRECTORY)], check=True, timeout=INSTALL_TIMEOUT_S)
    pinned = [line for line in REQUIREMENTS.read_text().splitlines() if line.startswith(name)]
    command = [str(DIRECTORY / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *pinned], timeout=INSTALL_TIMEOUT_S, check=False)


def prepare_ninja(root: Path, count: int) -> None:
    lines = ["rule up", " command = tr a-z A-Z < $in > $out", "rule ex", " command = (cat $in; printf !) > $out"]
    for number in range(count):
        lines += [f"build mid/{number}.txt: up in/{number}.txt", f"build out/{number}.txt: ex mid/{number}.txt"]
    (root / "build.ninja").write_text("\n".join(lines) + "\n")


def prepare_luigi(root: Path, count: int) -> None:
    (root / "luigi_tasks.py").write_text(LUIGI)
    (root / "count").write_text(str(count))


def prepare_snakemake(root: Path, count: int) -> None:
    (root / "Snakefile").write_text(SNAKEFILE.format(count=count))


def prepare_dvc(root: Path, count: int) -> None:
    every = list(range(count))
    stages = ""
    for name, command, source, target in (
        ("first", "tr a-z A-Z < in/${item}.txt > mid/${item}.txt", "in", "mid"),
        ("second", "cp mid/${item}.txt out/${item}.txt", "mid", "out"),
    ):
        stages += f"  {name}:\n    foreach: {every}\n    do:\n      cmd: {command}\n"
        stages += f"      deps: [{source}/${{item}}.txt]\n      outs: [{target}/${{item}}.txt]\n"
    (root / "dvc.yaml").write_text("stages:\n" + stages)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run([str(DIRECTORY / "bin" / "dvc"), "init", "-q"], cwd=root, check=False, timeout=60)


def _luigi(executable: str, root: Path) -> list[str]:
    python = str(Path(executable).with_name("python"))
    return [python, "luigi_tasks.py", (root / "count").read_text()]


PEERS = {
    "ninja": Peer("ninja", "ninja", 10**9, prepare_ninja, lambda program, _: [program, "--quiet"]),
    "luigi": Peer("luigi", "luigi", 1000, prepare_luigi, _luigi),
    "snakemake": Peer(
        "snakemake", "snakemake", 300, prepare_snakemake, lambda program, _: [program, "--cores", "2", "--quiet", "all"]
    ),
    "dvc": Peer("dvc", "dvc", 50, prepare_dvc, lambda program, _: [program, "repro", "-q"]),
}
