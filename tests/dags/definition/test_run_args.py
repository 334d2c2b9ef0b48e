"""The arguments of a dag's runs: declared by a type or a schema, checked when a run is started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from tidemill import App
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.dags import Dag, node, parse_dag, ref
from tidemill.dags.definition.run_args import check_args
from tidemill.store.database import Database


@dataclass
class Nightly:
    day: str
    limit: int = 10


class Weekly(msgspec.Struct):
    day: str
    limit: int = 10


class Monthly(pydantic.BaseModel):
    day: str
    limit: int = 10


FILE = """
name: nightly
args: {type: object, properties: {day: {type: string}}, required: [day]}
nodes: [{name: extract, task: etl.extract}]
"""


def dag(args: Any = None, **fields: Any) -> Dag[Any]:
    return Dag("nightly", [node("extract", "etl.extract", args={"day": ref("$.run.day")})], args=args, **fields)


@pytest.mark.parametrize("kind", [Nightly, Weekly, Monthly])
@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"dya": "monday"}, "dag nightly: there is no argument 'dya'; did you mean 'day'"),
        ({"day": "monday", "colour": 1}, "dag nightly: there is no argument 'colour'; it takes day, limit"),
        ({}, 'dag nightly: bad arguments: "day" is a required property'),
        ({"day": 3}, "dag nightly: bad arguments: day: 3 is not of type"),
    ],
)
def test_arguments_that_the_dag_does_not_declare_are_refused(kind: Any, args: dict[str, Any], problem: str) -> None:
    declared = dag(kind)
    with pytest.raises(PayloadError, match=problem):
        check_args(declared, args)
    check_args(declared, {"day": "monday"})
    check_args(Dag.from_json(declared.to_json()), {"day": "monday", "limit": 3})


def test_a_file_declares_them_as_a_schema() -> None:
    declared = parse_dag(FILE)
    check_args(declared, {"day": "monday", "more": "is allowed by this schema"})
    with pytest.raises(PayloadError, match='"day" is a required property'):
        check_args(declared, {})


def test_without_a_declaration_an_argument_that_nothing_reads_is_refused() -> None:
    with pytest.raises(PayloadError, match="dag nightly: there is no argument 'dya'; did you mean 'day'"):
        check_args(dag(), {"dya": "monday"})
    check_args(dag(), {"day": "monday"})
    check_args(dag(result={"seen": ref("$.run.shop")}), {"day": "monday", "shop": 3})
    whole = Dag("d", [node("a", "t", args={"all": ref("$.run")})])
    check_args(whole, {"any": "thing"})
    condition = Dag("d", [node("a", "t", skip_if="run.day == 'sunday'")])
    check_args(condition, {"day": "monday"})


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (int, "dag 'nightly': args: <class 'int'> is not a type with fields, such as a dataclass"),
        (object(), "dag 'nightly': args: <object object at .*> has no JSON Schema"),
        ({"type": "no such type"}, "dag 'nightly': args: "),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(args: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        dag(args)


async def test_start_takes_the_arguments_as_an_object_or_by_name_and_not_both(app: App, database: Database) -> None:
    nightly = app.dag(dag(Nightly))
    await app.start(nightly, Nightly("monday"))
    await app.start(nightly, {"day": "monday"})
    await app.start("nightly", day="monday")
    stored = [
        decode(row["input"])["args"] for row in await database.fetch("SELECT input FROM tidemill.run ORDER BY id")
    ]
    assert stored == [{"day": "monday", "limit": 10}, {"day": "monday"}, {"day": "monday"}]
    with pytest.raises(PayloadError, match="there is no argument 'dya'; did you mean 'day'"):
        await app.start(nightly, dya="monday")
    with pytest.raises(ConfigError, match="start has no option 'queue', which jobs have"):
        await app.start(nightly, day="monday", queue="mail")
    with pytest.raises(ConfigError, match="start was given its arguments as one object and the keyword 'limit'"):
        await app.start(nightly, Nightly("monday"), limit=3)  # pyright: ignore
    with pytest.raises(PayloadError, match="a dag is started with an object or a dict of arguments"):
        await app.start(nightly, 5)  # pyright: ignore
