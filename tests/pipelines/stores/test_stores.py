"""Places for states: files, an object store, the database; what each promises alike."""

from __future__ import annotations

import asyncio
import hashlib
import os
import string
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from obstore.store import LocalStore, MemoryStore

from tests.support import eventually
from tests.support.pipelines import held, look, put, tree, until_trusted, update, wanted
from tidemill.core.errors import ConfigError
from tidemill.pipelines import File, PatternError, Pipeline, StateStore
from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.runner.driver import Driver
from tidemill.pipelines.stores.base import ManifestEntry, SeenFile, StateDraft, States, StateStoreError
from tidemill.pipelines.stores.database import DatabaseStates
from tidemill.pipelines.stores.external_states import check_input
from tidemill.pipelines.stores.files import FileStates
from tidemill.pipelines.stores.manifest import change_manifest, read_manifest
from tidemill.pipelines.stores.objects import ObjectStates
from tidemill.pipelines.view.pipeline_view import PipelineView
from tidemill.store.database import Database


@pytest.fixture(params=["files", "memory", "local objects", "database"])
async def states(request: pytest.FixtureRequest, tmp_path: Path, database: Database) -> AsyncIterator[States]:
    if request.param == "files":
        yield FileStates(tmp_path)
    elif request.param == "memory":
        yield ObjectStates(MemoryStore())
    elif request.param == "local objects":
        yield ObjectStates(LocalStore(tmp_path))
    else:
        yield DatabaseStates("test", database)


async def write(states: States, path: str, content: Any, needs: dict[str, int] | None = None) -> dict[str, int]:
    before = (await states.read_signatures([path]))[path]
    return await states.publish(await states.prepare([StateDraft(path, content, needs or {}, before=before)]))


async def test_what_is_written_is_listed_and_read_as_it_was(states: States) -> None:
    signature = (await write(states, "a/1.txt", b"one"))["a/1.txt"]
    await write(states, "a/2.txt", iter([b"t", b"wo"]))
    await write(states, "b/x/3.txt", b"three")
    scan = await states.scan([Pattern("a/{id}.txt"), Pattern("b/{x}/{y}.txt"), Pattern("c/{z}.txt")])
    assert set(scan.signatures) == {"a/1.txt", "a/2.txt", "b/x/3.txt"}
    assert scan.signatures["a/1.txt"] == signature
    assert list(scan.matched[Pattern("b/{x}/{y}.txt")]) == ["b/x/3.txt"]
    assert await states.read("a/2.txt") == b"two"
    assert b"".join([piece async for piece in states.stream("b/x/3.txt")]) == b"three"
    seen = await states.contents(["a/1.txt", "a/9.txt"])
    assert seen["a/9.txt"] is None
    one = seen["a/1.txt"]
    assert isinstance(one, SeenFile)
    assert one.size == 3


async def test_a_signature_changes_with_every_write(states: States) -> None:
    first = await write(states, "a/1.txt", b"one")
    second = await write(states, "a/1.txt", b"two")
    assert first["a/1.txt"] != second["a/1.txt"]
    assert await states.read_signatures(["a/1.txt", "nothing"]) == {"a/1.txt": second["a/1.txt"], "nothing": None}


async def test_content_is_put_in_place_only_if_what_it_needs_is_as_it_was(states: States) -> None:
    source = (await write(states, "in.txt", b"old"))["in.txt"]
    await write(states, "in.txt", b"new")
    assert await write(states, "out.txt", b"made of old", {"in.txt": source}) == {}
    assert await states.read_signatures(["out.txt"]) == {"out.txt": None}


async def test_removed_and_archived_states_are_gone_from_their_place(states: States) -> None:
    await write(states, "a/1.txt", b"one")
    await write(states, "a/2.txt", b"two")
    await states.remove(["a/1.txt"])
    await states.archive(["a/2.txt"])
    assert await states.read_signatures(["a/1.txt", "a/2.txt"]) == {"a/1.txt": None, "a/2.txt": None}


@pytest.mark.parametrize("kind", ["memory", "local objects", "database"])
async def test_a_pipeline_keeps_its_states_elsewhere(kind: str, tmp_path: Path, database: Database) -> None:
    store: Any = {
        "memory": lambda: ObjectStates(MemoryStore()),
        "local objects": lambda: ObjectStates(LocalStore(tmp_path)),
        "database": lambda: DatabaseStates("p"),
    }[kind]()
    pipeline = Pipeline("p", store=store)

    @pipeline.stage(input="in/{id}.txt", output="mid/{id}.txt")
    async def first(entity, text):
        return text.upper()

    @pipeline.stage(input="mid/*.txt", output="all.txt")
    def together(entity, files):
        return ",".join(file.text() for file in files)

    states = PipelineView(database, pipeline).states
    await write(states, "in/a.txt", b"apple")
    await write(states, "in/b.txt", b"pear")
    assert (await update(database, pipeline)).steps == []
    assert await states.read("all.txt") == b"APPLE,PEAR"
    await write(states, "in/b.txt", b"plum")
    assert wanted(await look(database, pipeline)) == {"first/b": "InputChanged"}
    assert (await update(database, pipeline)).steps == []
    assert await states.read("all.txt") == b"APPLE,PLUM"
    await states.remove(["mid/a.txt"])
    assert wanted(await look(database, pipeline)) == {"first/a": "Deleted"}


async def test_of_two_who_put_the_same_object_one_has_its_way() -> None:
    store = MemoryStore()
    one, two = ObjectStates(store), ObjectStates(store)
    first = await one.prepare([StateDraft("a.txt", b"one", {})])
    second = await two.prepare([StateDraft("a.txt", b"two", {})])
    assert list(await one.publish(first)) == ["a.txt"]
    assert await two.publish(second) == {}
    before = (await two.read_signatures(["a.txt"]))["a.txt"]
    late = await two.prepare([StateDraft("a.txt", b"late", {}, before=before)])
    await write(one, "a.txt", b"newer")
    assert await two.publish(late) == {}
    assert await one.read("a.txt") == b"newer"


async def test_many_who_change_one_objects_manifest_lose_nothing() -> None:
    store = MemoryStore()
    entry = ManifestEntry("code", "content")
    await asyncio.gather(*(ObjectStates(store).keep_manifest("a", {f"{n}.txt": entry}) for n in range(8)))
    assert set(await ObjectStates(store).manifest("a")) == {f"{n}.txt" for n in range(8)}


def test_many_who_change_one_manifest_lose_nothing(tmp_path: Path) -> None:
    entry = ManifestEntry("code", "content", "2026-01-15T10:00:00Z", "p#s")
    put(tmp_path, {f"{n}-{m}.txt": "" for n in range(8) for m in range(10)})

    def change(n: int) -> None:
        for m in range(10):
            change_manifest(tmp_path, {f"{n}-{m}.txt": entry})

    threads = [threading.Thread(target=change, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(read_manifest(tmp_path)) == {f"{n}-{m}.txt" for n in range(8) for m in range(10)}


def test_a_manifest_never_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    put(tmp_path, {"a.txt": ""})
    change_manifest(tmp_path, {"a.txt": ManifestEntry("c", "c"), "gone.txt": ManifestEntry("c", "c")})
    assert set(read_manifest(tmp_path)) == {"a.txt"}


def test_a_manifest_that_cannot_be_read_says_so_and_is_written_again(tmp_path: Path) -> None:
    put(tmp_path, {"a.txt": "", ".manifest.json": "{"})
    with pytest.raises(StateStoreError, match="cannot be read"):
        read_manifest(tmp_path)
    change_manifest(tmp_path, {"a.txt": ManifestEntry("c", "c")})
    assert set(read_manifest(tmp_path)) == {"a.txt"}


def plain(root: Path) -> Pipeline:
    pipeline = Pipeline("p", root=root)

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt")
    def only(entity, text):
        return text

    return pipeline


async def test_a_folder_that_leads_out_of_the_root_is_not_written_to(tmp_path: Path, database: Database) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root = tmp_path / "root"
    put(root, {"in/a.txt": "x"})
    (root / "out").symlink_to(elsewhere)
    plan = await update(database, plain(root))
    assert held(plan) == {"only/a": "BackingOff"}
    assert "leads out of" in str(plan.holds[0].reason)
    assert list(elsewhere.iterdir()) == []


async def test_names_that_are_not_utf8_and_loops_of_links_are_told_and_left_alone(
    tmp_path: Path, database: Database
) -> None:
    put(tmp_path, {"in/a.txt": "x"})
    with open(os.fsencode(tmp_path) + b"/in/\xff.txt", "wb") as opened:
        opened.write(b"x")
    (tmp_path / "in/loop.txt").symlink_to("loop.txt")
    driver = Driver(database, plain(tmp_path))
    plan = await driver.begin()
    assert [step.entity for step in plan.builds] == ["a"]
    told = " ".join(driver.pipeline_view.problems)
    assert "not UTF-8" in told
    assert "loop.txt" in told


async def test_a_folder_that_cannot_be_read_is_told_and_nothing_is_lost(tmp_path: Path, database: Database) -> None:
    put(tmp_path, {"in/a.txt": "x"})
    await update(database, plain(tmp_path))
    pipeline_view = PipelineView(database, plain(tmp_path))
    await pipeline_view.load()
    os.chmod(tmp_path / "in", 0)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)  # root may read anything
        scan = FileStates(tmp_path).scan_now(pipeline_view.patterns)
    finally:
        if root:
            os.seteuid(0)
        os.chmod(tmp_path / "in", 0o755)
    pipeline_view.take_scan(scan)
    plan = pipeline_view.plan()
    assert "cannot be read" in " ".join(pipeline_view.problems)
    assert (plan.orphans, plan.steps) == ([], [])
    assert tree(tmp_path)["out/a.txt"] == "x"


async def test_a_disk_that_is_full_is_told_and_costs_nothing_but_time(tmp_path: Path, database: Database) -> None:
    """A limit on the size of files stands in for a full disk: the same call fails in the same way."""
    import resource
    import signal

    put(tmp_path, {"in/a.txt": "x" * 5000})
    before, old = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    driver = Driver(database, plain(tmp_path))
    plan = await driver.begin()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        await driver.act(plan)
        await driver.idle.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    await driver.close()
    plan = await update(database, plain(tmp_path))
    assert held(plan) == {"only/a": "BackingOff"}
    assert "cannot be written" in str(plan.holds[0].reason)
    assert "out/a.txt" not in tree(tmp_path)
    assert not list(tmp_path.rglob(".tidemill-*.tmp"))
    await database.fetch("UPDATE tidemill.state_failure SET retry_at = now() - interval '1 second'")
    assert held(await update(database, plain(tmp_path))) == {}
    assert tree(tmp_path)["out/a.txt"] == "x" * 5000


class Pieces:
    """A large content that is never there as a whole: counts how many pieces are held at once."""

    def __init__(self, count: int, *, breaks: bool = False) -> None:
        self._count, self._breaks = count, breaks

    def __iter__(self) -> Iterator[bytes]:
        for at in range(self._count):
            if self._breaks and at == self._count // 2:
                raise ValueError("the well is dry")
            yield bytes([65 + at % 26]) * 1_000_000


async def test_what_is_large_goes_through_in_pieces(states: States) -> None:
    is_in_memory = isinstance(states, DatabaseStates) or isinstance(getattr(states, "store", None), MemoryStore)
    count = 4 if is_in_memory else 64
    tracemalloc.start()
    try:
        await write(states, "a/big.bin", Pieces(count))
        digest, size = hashlib.blake2b(digest_size=16), 0
        async for piece in states.stream("a/big.bin"):
            digest.update(piece)
            size += len(piece)
        seen = (await states.contents(["a/big.bin"]))["a/big.bin"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size == count * 1_000_000
    assert isinstance(seen, SeenFile)
    assert (seen.content, seen.size) == (digest.hexdigest(), size)
    assert peak < 32_000_000


async def test_a_content_that_breaks_off_leaves_nothing_behind(states: States, tmp_path: Path) -> None:
    (ready,) = await states.prepare([StateDraft("a/big.bin", Pieces(8, breaks=True), {})])
    assert ready.error == "ValueError: the well is dry"
    assert await states.read_signatures(["a/big.bin"]) == {"a/big.bin": None}
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("kind", ["files", "memory", "database"])
async def test_functions_may_read_and_give_piece_by_piece(kind: str, tmp_path: Path, database: Database) -> None:
    store: Any = {"files": None, "memory": ObjectStates(MemoryStore()), "database": DatabaseStates("pieces")}[kind]
    pipeline = Pipeline("pieces", root=tmp_path, store=store)

    @pipeline.stage(input="in/{id}.txt", output="mid/{id}.txt", in_process=True)
    async def first(entity, file: File):
        async for piece in file.stream():
            yield piece.upper()

    @pipeline.stage(input="mid/{id}.txt", output="out/{id}.txt", in_process=True)
    def second(entity, file: File):
        return (piece.replace(b"P", b"b") for piece in file.pieces())

    @pipeline.stage(input="mid/{id}.txt", output="bad/{id}.txt", in_process=True)
    def third(entity, file: File):
        yield from file.pieces()
        raise ValueError("in the middle")

    states = PipelineView(database, pipeline).states
    await write(states, "in/a.txt", b"apple")
    plan = await update(database, pipeline)
    assert await states.read("out/a.txt") == b"AbbLE"
    assert held(plan) == {"third/a": "BackingOff"}
    assert "ValueError: in the middle" in str(plan.holds[0].reason)
    assert await states.read_signatures(["bad/a.txt"]) == {"bad/a.txt": None}


@pytest.mark.parametrize("kind", ["files", "memory", "local objects", "database"])
async def test_states_are_reached_by_pattern_and_entity(kind: str, tmp_path: Path, database: Database) -> None:
    store: Any = {
        "files": None, "memory": ObjectStates(MemoryStore()), "local objects": ObjectStates(LocalStore(tmp_path)),
        "database": DatabaseStates("reached"),
    }[kind]  # fmt: skip
    pipeline = Pipeline("p", root=tmp_path, store=store)

    @pipeline.stage(input="in/{lang}/{id}.txt", output="out/{lang}/{id}.txt", in_process=True)
    def only(entity, text):
        return text.upper()

    reached = StateStore(pipeline, database)
    assert await reached.write("in/{lang}/{id}.txt", {"lang": "en", "id": "a"}, "apple") == "in/en/a.txt"
    await reached.write("in/{lang}/{id}.txt", {"lang": "de", "id": "b"}, iter([b"bir", b"ne"]))
    await reached.write("in/{lang}/{id}.txt", {"lang": "en", "id": "a"}, b"apples")
    await update(database, pipeline)
    one = {"lang": "en", "id": "a"}
    assert await reached.exists("out/{lang}/{id}.txt", one)
    assert not await reached.exists("out/{lang}/{id}.txt", {"lang": "en", "id": "z"})
    assert await reached.read("out/{lang}/{id}.txt", one) == b"APPLES"
    assert b"".join([piece async for piece in reached.stream("out/{lang}/{id}.txt", one)]) == b"APPLES"
    assert await reached.list_entities("out/{lang}/{id}.txt") == [{"lang": "de", "id": "b"}, one]
    (entry,) = (await reached.manifest("out/de")).values()
    assert entry.produced_by == "p#only"
    with pytest.raises(ConfigError, match="made by stage only"):
        await reached.write("out/{lang}/{id}.txt", one, "by hand")
    with pytest.raises(PatternError):
        await reached.read("out/{lang}/{id}.txt", {"lang": "..", "id": "a"})


@pytest.mark.parametrize("hours", [-5, 5])
async def test_a_host_whose_clock_is_wrong_is_told_so_and_trusts_files_all_the_same(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    put(tmp_path, {"in/old.txt": "x"})
    real, skew = time.time_ns, hours * 3600 * 1_000_000_000
    await asyncio.to_thread(until_trusted, tmp_path / "in/old.txt")
    monkeypatch.setattr(time, "time_ns", lambda: real() + skew)
    pipeline_view = PipelineView(database, plain(tmp_path))
    await pipeline_view.measure_clocks()

    async def looked_at_what_is_new() -> bool:
        put(tmp_path, {"in/new.txt": "y"})
        await pipeline_view.scan()
        return "in/new.txt" in pipeline_view.distrusted

    await eventually(looked_at_what_is_new, what="somebody looks right after it was written")
    assert pipeline_view.distrusted == {"in/new.txt"}
    (note,) = pipeline_view.notes
    assert f"the clock of the file system is 18,000 s {'behind' if hours > 0 else 'ahead of'} this host's" in note
    assert list(tmp_path.rglob(".tidemill-*")) == []


async def test_the_database_forgets_files_that_are_gone(tmp_path: Path, database: Database) -> None:
    put(tmp_path, {"in/a.txt": "x", "in/b.txt": "y"})
    await asyncio.to_thread(until_trusted, tmp_path / "in/b.txt")
    await update(database, plain(tmp_path))
    (tmp_path / "in/a.txt").unlink()
    pipeline_view = PipelineView(database, plain(tmp_path))
    await pipeline_view.read_all()
    await pipeline_view.forget_gone()
    rows = await database.fetch("SELECT path FROM tidemill.state_file")
    assert [row["path"] for row in rows] == ["in/b.txt"]


async def test_an_object_store_that_is_away_is_said_to_be_and_costs_a_state_one_failure(database: Database) -> None:
    obstore = pytest.importorskip("obstore.store")
    config = {"access_key_id": "x", "secret_access_key": "x", "endpoint": "http://127.0.0.1:1", "region": "x"}
    away = obstore.S3Store(
        "bucket", config=config, client_options={"allow_http": True}, retry_config={"max_retries": 0}
    )
    states = ObjectStates(away)
    with pytest.raises(StateStoreError, match=r"the object store cannot be reached for in: .*; check its address"):
        await states.scan([Pattern("in/{id}.txt")])
    with pytest.raises(StateStoreError, match=r"cannot be reached for in/a.txt"):
        await states.read("in/a.txt")
    (ready,) = await states.prepare([StateDraft("out/a.txt", b"x", {"in/a.txt": 1})])
    assert await states.publish([ready]) == {}
    assert "cannot be reached" in (ready.error or "")
    pipeline = Pipeline("p", store=states)
    pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", name="only")(lambda entity, text: text)
    with pytest.raises(StateStoreError, match="cannot be reached"):
        await update(database, pipeline)


def test_a_store_is_shown_as_the_place_that_it_is() -> None:
    assert str(DatabaseStates("notes")) == "the database, as notes"
    assert str(ObjectStates(MemoryStore())) == "objects (MemoryStore)"


async def test_a_path_that_the_database_cannot_hold_is_a_failure_of_its_state_alone(database: Database) -> None:
    pipeline, long = Pipeline("p", store=DatabaseStates("p")), random_name(1_500)

    @pipeline.stage(input="in/{id}.txt", output="out/{id}-{id}.txt", version="1")
    def twice(entity, text):
        return text

    states = PipelineView(database, pipeline).states
    await write(states, "in/a.txt", b"x")
    await write(states, f"in/{long}.txt", b"x")
    left = await update(database, pipeline)
    assert {step.entity: type(step.reason).__name__ for step in left.steps} == {long: "BackingOff"}
    assert "its path has more than 2,400 bytes" in str(left.steps[0].reason)
    assert await states.read("out/a-a.txt") == b"x"
    with pytest.raises(ConfigError, match="its path has more than 2,400 bytes"):
        check_input(pipeline, f"in/{random_name(2_500)}.txt")


def random_name(length: int) -> str:
    """A name that no compression makes shorter."""
    return "".join(Random(length).choices(string.ascii_letters + string.digits, k=length))
