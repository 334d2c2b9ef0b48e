"""`tidemill pipeline` through a running server, which has the application: what is meant is one word less to say."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
from rich.progress import Progress

from tidemill.cli.confirm import agreed
from tidemill.cli.render import out, timely
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.pipelines.runner.operate import StateStory

if TYPE_CHECKING:
    from tidemill.cli.client import Row, RowClient

LOOK_EVERY = 0.5
MANY = 10  # states that are built again without asking

#: What the API calls otherwise than this command line.
WORDS = {"blocked": "waiting", "needs_approval": "needs approval"}


class Meant(msgspec.Struct, frozen=True):
    """What a word on the command line means: a pipeline, a stage of it, a state; or an entity of all its stages."""

    pipeline: str
    stage: str | None = None
    entity: str | None = None

    @property
    def states(self) -> dict[str, Any]:
        """The states that are meant, as the API is told them."""
        return {"stage": self.stage, "entities": None if self.entity is None else [self.entity]}


def only_word(app: str | None, more: str | None) -> str | None:
    """What is said to a server: what would come after the application."""
    if more is not None:
        raise ConfigError(f"the server has the application: leave out {app!r}")
    return app


def find(server: RowClient, text: str) -> Meant:
    """What is meant by PIPELINE, STAGE, STAGE/ENTITY or ENTITY; also with PIPELINE/ before it."""
    views = server.items("pipelines")
    named = [view for view in views if text == view["name"] or text.startswith(f"{view['name']}/")]
    owners = named or [view for view in views if text.partition("/")[0] in _stages(view)] or views
    if len(owners) != 1:
        names = ", ".join(view["name"] for view in owners) or "none"
        raise ConfigError(f"say of which pipeline, as PIPELINE/{text}: there are {names}")
    (owner,) = owners
    rest = text if not named else text.removeprefix(owner["name"]).removeprefix("/")
    stage, _, entity = rest.partition("/")
    if stage in _stages(owner):
        return Meant(owner["name"], stage, entity or None)
    return Meant(owner["name"], None, rest or None)


def find_stage(server: RowClient, text: str) -> Meant:
    """The stage that is meant by STAGE or PIPELINE/STAGE."""
    meant = find(server, text)
    if meant.stage is None or meant.entity is not None:
        raise NotFoundError(f"{text!r} is no stage of pipeline {meant.pipeline}: write STAGE or PIPELINE/STAGE")
    return meant


def status(server: RowClient, name: str | None) -> list[dict[str, Any]]:
    """How pipelines are, as `status` tells it."""
    return [
        {
            "pipeline": view["name"],
            "root": view["place"],
            "stages": {
                stage["name"]: {"fresh": 0} | {_word(word): n for word, n in stage["counts"].items()}
                for stage in view["stages"]
            },
            "bytes": {stage["name"]: stage["bytes"] for stage in view["stages"]},
            "paused": {
                each["name"]: each["paused_by"]
                for each in ({"name": "", "paused_by": view["paused_by"]}, *view["stages"])
                if each["paused_by"]
            },
            "problems": view["problems"],
            "notes": [],
        }
        for view in _chosen(server, name)
    ]


def history(server: RowClient, text: str | None, limit: int) -> list[Row]:
    """Builds of a state, a stage, a pipeline or of all, the newest first."""
    meant = [Meant(view["name"]) for view in server.items("pipelines")] if text is None else [find(server, text)]
    found = [
        {"pipeline": each.pipeline, **row}
        for each in meant
        for row in server.pages("pipelines", each.pipeline, "builds", limit=limit, stage=each.stage, entity=each.entity)
    ]
    return sorted(found, key=lambda row: row["at"], reverse=True)[:limit]


def story(server: RowClient, text: str) -> StateStory:
    """Everything that is known of one state."""
    meant = find(server, text)
    if meant.stage is None:
        raise NotFoundError(f"{text!r} is no state of pipeline {meant.pipeline}: write STAGE/ENTITY")
    told = server.row("pipelines", meant.pipeline, "state", stage=meant.stage, entity=meant.entity or "")
    makers = {each["path"]: each["made_by"] for each in told["inputs"] if each["made_by"]}
    return StateStory(
        pipeline=told["pipeline"],
        stage=told["stage"],
        entity=told["entity"],
        paths=[each["path"] for each in told["outputs"]],
        status=_word(told["standing"]),
        reason=told["reason"],
        told=" ".join(told["why"]),
        code=told["code"]["built"] or "",
        code_now=told["code"]["now"],
        parts=told["code"]["parts"],
        inputs={each["path"]: each["content"] or "" for each in told["inputs"]},
        made_by={path: maker["stage"] for path, maker in makers.items()},
        made_from=[f"{maker['stage']}/{maker['entity']}" for maker in makers.values()],
        taken_by=[f"{each['stage']}/{each['entity']}" for each in told["taken_by"]],
        built_at=told["built_at"],
        took=told["took"],
        built_by=told["built_by"],
        failure=None if told["failure"] is None else timely(told["failure"]),
        builds=[{"pipeline": told["pipeline"], **timely(each)} for each in told["builds"]],
    )


def invalidate(server: RowClient, text: str, *, downstream: bool, yes: bool) -> None:
    """Have states built again."""
    meant = find(server, text)
    wanted = {**meant.states, "downstream": downstream}
    count = server.preview("pipelines", meant.pipeline, "invalidate", "preview", body=wanted)["count"]
    if count > MANY and not yes and not agreed(f"have {count:,} states built again"):
        return
    done = server.post("pipelines", meant.pipeline, "invalidate", body={**wanted, "count": count})["count"]
    out().print(f"{done} states are built again by whoever keeps pipeline {meant.pipeline} up to date")


def retry(server: RowClient, text: str | None) -> None:
    """Try failed states again."""
    meant = [Meant(view["name"]) for view in server.items("pipelines")] if text is None else [find(server, text)]
    for each in meant:
        done = server.post("pipelines", each.pipeline, "retry", body=each.states)["count"]
        out().print(f"{each.pipeline}: {done} failed states are tried again")


def accept(server: RowClient, text: str, *, yes: bool) -> None:
    """Take a stage's states as built by its code of now."""
    meant = find_stage(server, text)
    if not yes and not agreed(f"take all states of {meant.stage} as built by its code of now"):
        return
    done = server.post("pipelines", meant.pipeline, "accept", body={"stage": meant.stage})["count"]
    out().print(f"{done} states of {meant.stage} count as built by the code of now")


def approve(server: RowClient, text: str) -> None:
    """Agree that many states of a stage are built again."""
    meant = find_stage(server, text)
    server.post("pipelines", meant.pipeline, "approve", body={"stage": meant.stage})
    out().print(f"approved for a day: states of {meant.stage} are built again by its code of now")


def set_paused(server: RowClient, text: str, *, paused: bool) -> None:
    """Pause a pipeline or a stage, or let it go on."""
    meant = find(server, text)
    if meant.entity is not None:
        raise NotFoundError(f"{text!r} is neither a pipeline nor a stage")
    server.post("pipelines", meant.pipeline, "pause" if paused else "resume", body={"stage": meant.stage})
    out().print(f"{text} {'is paused' if paused else 'goes on'}")


def backfill(server: RowClient, text: str, wanted: dict[str, Any], *, wait: bool) -> int:
    """Have a range of a stage's states built again; returns the exit status."""
    meant = find_stage(server, text)
    begun = server.post("pipelines", meant.pipeline, "backfill", body={"stage": meant.stage, **wanted})
    failed = _follow(server, meant, begun) if wait else 0
    out().print(f"{begun['total']} states {'were' if wait else 'are'} built again")
    if failed:
        out().print(f"{failed} of them failed: see `tidemill pipeline status`", style="red")
    return 1 if failed else 0


def _follow(server: RowClient, meant: Meant, begun: dict[str, Any]) -> int:
    """Show how far a backfill is until nothing is left of it but what has failed; returns how many that are."""
    with Progress(console=out()) as progress:
        bar = progress.add_task(f"{meant.pipeline}/{meant.stage}", total=begun["total"])
        while True:
            if not server.get("pipelines", meant.pipeline)["kept"]:
                raise ConfigError(
                    f"nobody keeps pipeline {meant.pipeline} up to date: it goes on when `tidemill up` or "
                    "`tidemill pipeline run` does"
                )
            known = server.items("pipelines", meant.pipeline, "backfills", limit=100)
            found = next((each for each in known if each["id"] == begun["id"]), None)
            if found is None or found["stopped_at"] is not None:
                raise ConfigError(f"backfill {begun['id']} of pipeline {meant.pipeline} was stopped")
            progress.update(bar, completed=begun["total"] - found["left"])
            if found["left"] == found["failed"]:
                return found["failed"]
            time.sleep(LOOK_EVERY)


def _chosen(server: RowClient, name: str | None) -> list[Row]:
    views = server.items("pipelines")
    found = [view for view in views if name is None or view["name"] == name]
    if name is not None and not found:
        raise ConfigError(f"there is no pipeline {name!r}; there are: {', '.join(view['name'] for view in views)}")
    return found


def _word(standing: str) -> str:
    return WORDS.get(standing, standing)


def _stages(view: Row) -> list[str]:
    return [stage["name"] for stage in view["stages"]]
