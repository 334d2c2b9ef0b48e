"""What a supervisor knows to be valid is compiled where it is evaluated; everything else where it is declared."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, sys
from tidemill.core.expressions.conditions import Condition
from tidemill.core.expressions.known_valid import learn_valid, record_valid
from tidemill.core.expressions.paths import RefError
from tidemill.dags.definition.schema import Schema

ENGINES = ("cel_expr_python", "jsonschema_rs")
TEXT, SCHEMA, DEFAULT = "agree.ok && !run.dry", {"type": "object", "required": ["ok"]}, {"ok": True}

def declare():
    condition, schema = Condition(TEXT), Schema(SCHEMA)
    assert schema.problem_of_default(DEFAULT) is None
    return condition, schema

reading, writing = os.pipe()
if os.fork() == 0:
    found = record_valid()
    declare()
    os.write(writing, b"".join(found))
    os._exit(0)
os.wait()
digests = os.read(reading, 1000)
learn_valid({digests[at:at + 16] for at in range(0, len(digests), 16)})

condition, schema = declare()
assert not [name for name in ENGINES if name in sys.modules]
assert schema.problem_of_default({}) is not None, "another default is checked"
for bad in ("agree.ok &&", "1 +"):
    try:
        Condition(bad)
    except RefError:
        continue
    raise AssertionError(bad)
assert condition.holds({"agree": {"ok": True}, "run": {"dry": False}})
assert not condition.holds({"agree": {"ok": True}, "run": {"dry": True}})
assert schema.problem({"ok": 1}) is None and schema.problem([]) is not None
"""


def test_what_another_process_has_compiled_is_compiled_when_it_is_first_evaluated() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
