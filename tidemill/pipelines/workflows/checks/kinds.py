"""The kinds of nodes in workflow files, with their fields: used by editors and checks.

The executable types are those of `nodes`; the state nodes are those of `node_graph`. A test compares these fields with
those that their code reads. A custom type declares its fields:

    @node_type("shout", fields={"text": {"type": "string", "description": "What is shouted."}})
    def shout(data, item): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import msgspec

from tidemill.core.duration import LONGEST
from tidemill.pipelines.workflows import node_types as _builtin  # noqa: F401 - registers them
from tidemill.pipelines.workflows.node_types.http import BODY_MODES, METHODS
from tidemill.pipelines.workflows.nodes import NODE_TYPES, TRANSFORMS
from tidemill.pipelines.workflows.questions import ASKING

Fields = Mapping[str, Mapping[str, Any]]

MOST = 10**12  # of a number in a file, such as the bytes of a state
MOST_AT_ONCE = 10_000
MOST_ATTEMPTS = 10_000


class WorkflowNodeKind(msgspec.Struct, frozen=True):
    """A kind of node. `schema` is the JSON Schema of its data; items leave it by its `exits`, if it has several."""

    type: str
    group: str
    about: str
    schema: dict[str, Any]
    modes: tuple[str, ...] = ("pipeline", "trigger")
    per_item: bool = True
    is_start: bool = False
    exits: tuple[str, ...] = ()


def _text(about: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": about, **more}


def _number(about: str, **more: Any) -> dict[str, Any]:
    return {"type": "number", "description": about, "minimum": 0, "maximum": MOST, **more}


def _count(about: str, **more: Any) -> dict[str, Any]:
    return _number(about, **{"type": "integer", **more})


def _seconds(about: str, **more: Any) -> dict[str, Any]:
    return _number(about, **{"minimum": 1, "maximum": int(LONGEST), **more})


def _other_name(of: str, type: str = "string") -> dict[str, Any]:
    return {"type": type, "description": f"Another name for {of}.", "deprecated": True, "of": of}


_SCAN: Fields = {
    "pattern": _text("Which states there are: daily/{date}/ or input/{id}.txt. The braces name the entity."),
    "filter": _text("A CEL condition that selects entities: files > 2. hasFiles is always true."),
    "stateType": _text("In place of a pattern: the name of the node whose states these are.", rare=True),
    "state_root": _text("The folder of all states, where the file itself names none.", rare=True),
    "scan_interval": _seconds("Seconds between two scans of all states, if the file sets none.", rare=True),
}
_READ: Fields = {
    "pattern": _text("The state to read: {{$.dates.path}}, or input/{id}.txt together with entity_id."),
    "entity_id": _text("The entity, for a pattern with its own variable: {{$.trigger.entity_id}}."),
    "stateType": _text("In place of a pattern: the name of a kind of states.", rare=True),
    "path": _other_name("pattern"),
    "input": _other_name("pattern"),
}
_WRITE: Fields = {
    "pattern": _text("Where the state is written: final/{{$.dates.id}}.md, or final/{id}.md with entity_id."),
    "entity_id": _text("The entity, for a pattern with its own variable: {{$.trigger.entity_id}}."),
    "content": _text(
        "The content: {{$.answer.content}}. The default is the result of the previous node.", format="textarea"
    ),
    "min_size": _count("A smaller content, in bytes, is a failure."),
    "stateType": _text("In place of a pattern: the name of a kind of states.", rare=True),
    "minSize": _other_name("min_size", "integer"),
    "output": _other_name("pattern"),
    "path": _other_name("pattern"),
}
_TRANSFORM: Fields = {
    "input": _text("The input: {{$.dates.path}}/*.txt."),
    "output": _text("The output: final/{{$.dates.id}}.md."),
    "transform": _text("The name of the function that makes it, as @transform gave it.", suggest="transforms"),
    "minSize": _count("A smaller output, in bytes, is a failure."),
    "min_size": _other_name("minSize", "integer"),
}
_LLM: Fields = {
    "prompt": _text("The prompt for the language model.", format="textarea"),
    "system": _text("The system prompt.", format="textarea"),
    "model": _text("The model; the default is the configured one."),
}
_QUESTION: Fields = {
    "message": _text("What the person is asked.", format="textarea"),
    "title": _text("A title before it."),
    "buttons": _text("The answers to choose from, with commas between them: Publish, Discard.", default="OK"),
    "showInput": {"type": "boolean", "default": False, "description": "The person can also write a text."},
    "defaultInput": _text("The text as it is at first."),
}
_FIELDS = {
    "type": ["array", "object"],
    "items": {"type": "object", "properties": {"name": {"type": "string"}, "value": {}}, "required": ["name"]},
}

#: The fields of each type; editors show rare ones on request.
FIELDS: dict[str, Fields] = {
    "state_scan": _SCAN,
    "state_trigger": _SCAN,
    "state_list": _SCAN,
    "state_read": _READ,
    "state_check": _READ,
    "state_gate": _READ,
    "state_write": _WRITE,
    "state_clear_failure": {name: _READ[name] for name in ("pattern", "entity_id")},
    "state_transform": _TRANSFORM,
    "start": {},
    "scheduled": {
        "mode": {"enum": ["interval", "cron"], "default": "interval", "description": "What says when it runs."},
        "interval": {"type": ["string", "number"], "default": 5, "description": "How often it runs: 5, or 10m."},
        "unit": {
            "enum": ["seconds", "minutes", "hours", "days"],
            "default": "minutes",
            "description": "What a bare interval counts.",
        },
        "cron": _text("When it runs: 0 6 * * *."),
        "timezone": _text("The time zone of the cron expression: Europe/London.", default="UTC"),
        "every": {"type": ["string", "number"], "description": "Another name for interval.", "deprecated": True},
    },
    "webhook": {
        "signature": {
            "type": "object",
            "description": "How senders sign: then they need no token, and nothing runs without a right signature.",
            "properties": {
                "form": {
                    "enum": ["hmac-sha256", "github", "stripe"],
                    "default": "hmac-sha256",
                    "description": "How the signature is made.",
                },
                "header": _text("The header with the signature, for hmac-sha256: X-Signature."),
                "encoding": {"enum": ["hex", "base64"], "default": "hex", "description": "For hmac-sha256."},
                "timestampHeader": _text("The header with the time, for hmac-sha256, if TIME.BODY is signed."),
                "tolerance": _text("How old a request may be, where its time is signed.", default="5m"),
                "secretVariable": _text("The environment variable with the secret."),
                "secretFile": _text("The file with the secret."),
            },
        },
    },
    "hardwired": {
        "json": _text("The items, as JSON: [1, 2].", format="textarea"),
        "items": {"type": "array", "description": "The items that it gives.", "deprecated": True},
        "value": {"description": "The one value that it gives.", "deprecated": True},
    },
    "set": {"fields": {**_FIELDS, "description": "The fields that it gives, each filled in."}},
    "transform": {
        "expression": _text("What it gives as `result`: $.rd.content.toUpperCase()", format="expression"),
    },
    "if": {"condition": _text("What must be true: $.rd.content.length > 500", format="expression")},
    "http": {
        "url": _text("The address: https://example.org/{{$.entity.id}}"),
        "method": {
            "enum": list(METHODS),
            "default": "GET",
            "description": "The method of the request.",
        },
        "headers": {**_FIELDS, "description": "Headers: a list of {name, value}."},
        "body_mode": {"enum": list(BODY_MODES), "description": "What is sent; by default what is given."},
        "json_body": {"description": "The body as JSON; each {{…}} stays one value.", "format": "textarea"},
        "body_fields": {**_FIELDS, "description": "The fields of the body."},
        "timeout": _seconds("How many seconds an answer may take.", default=30),
        "body": {"description": "What is sent: a text, or anything as JSON.", "deprecated": True},
    },
    "rss": {"url": _text("The address of the feed.")},
    "append_to_file": {
        "filepath": _text("The file; created if it does not exist."),
        "content": _text("The line that is added.", format="textarea"),
        "path": _other_name("filepath"),
        "file": _other_name("filepath"),
    },
    "run_command": {
        "command": {
            "type": ["string", "array"],
            "description": "A list of words is run as it is; a text is run by the shell.",
        },
        "args": {"type": "array", "description": "Arguments; the command is then run as it is, without a shell."},
        "workingDirectory": _text("Where it runs; the default is where Tidemill runs."),
        "timeout": _seconds("How many seconds it may run.", default=300),
        "stdin": _text("What the program reads.", format="textarea"),
    },
    "postgres_query": {
        "query": _text("In SQL, with %(name)s for the parameters, or {{…}}.", format="textarea"),
        "params": {**_FIELDS, "description": "The values of %(name)s."},
        "parameters": {"type": "array", "description": "The values of $1, $2, ...", "rare": True},
        "urlVariable": _text("The environment variable that holds the database's address.", rare=True),
        "url": _text("The database's address; prefer a credential, because an address contains a password.", rare=True),
    },
    "llm": {
        **_LLM,
        "json": {
            "type": "boolean",
            "description": "The model must answer in JSON: what it gives is the value, of a list each entry.",
        },
        "maxTokens": _count("The longest answer, in tokens.", default=2000, minimum=1),
        "max_tokens": _other_name("maxTokens", "integer"),
    },
    "claude_agent": {
        **_LLM,
        "system_prompt": _other_name("system"),
        "tools": {"description": "Tools are not available: leave it empty.", "deprecated": True},
        "allowed_tools": {"description": "Another name for tools.", "deprecated": True},
        "conversation_id": _text("Conversations are not kept: leave it empty.", deprecated=True),
        "permission_mode": _text("Has no effect without tools.", deprecated=True),
        "cwd": _text("Has no effect without tools.", deprecated=True),
    },
    "claude_json": {
        "prompt": _text("The prompt; the model must answer in JSON.", format="textarea"),
        "model": _text("The model; the default is the configured one."),
        "max_tokens": _count("The longest answer, in tokens.", default=4096, minimum=1),
    },
    "notification": {
        "message": _text("What the notice says.", format="textarea"),
        "title": _text("Its title."),
    },
    "dialog": _QUESTION,
    "prompt": {**_QUESTION, "showInput": {**_QUESTION["showInput"], "default": True}},
    "discord_send": {
        "channel_id": _text("The channel's number."),
        "message": _text("The message.", format="textarea"),
        "content": _other_name("message"),
        "reply_to_id": _text("The number of the message that it answers."),
        "server_id": _text("The server's number, for readers.", rare=True),
        "mode": {"enum": ["send", "reply"], "description": "The default follows reply_to_id.", "rare": True},
    },
}
#: Kinds of other products' files that cannot run here, and what to use.
REFUSED: dict[str, str] = {
    "switch": "write an if for each case, and connect each to what follows it",
    "discord_trigger": "messages of Discord need a lasting connection to it: have a bot post them to a webhook node",
}
#: Fields that are understood and refused while they have a value.
REFUSED_FIELDS: dict[str, dict[str, str]] = {
    "claude_agent": {
        "tools": "the model is called without tools: leave it empty, or run the agent by run_command",
        "allowed_tools": "the model is called without tools: leave it empty, or run the agent by run_command",
        "conversation_id": "conversations are not kept: put what was said into the prompt",
    },
}
#: Fields that are understood and change nothing here.
IDLE_FIELDS: dict[str, dict[str, str]] = {
    "claude_agent": {
        "permission_mode": "this has no effect: the model is called without tools",
        "cwd": "this has no effect: the model is called without tools",
    },
}
#: Kinds that only a workflow that runs once can have, and what a pipeline uses.
NOT_OF_PIPELINES: dict[str, str] = dict.fromkeys(
    ASKING,
    "a pipeline asks no person: let a state_gate wait for a state that a person writes (`tidemill pipeline write`)",
)
#: Kinds whose fields may read `$credentials`: their values go to another system, and are not kept.
OUTWARD = ("http", "rss", "postgres_query", "notification", "discord_send", "llm", "claude_agent", "claude_json")
#: Kinds that log in with the credential that `credentialName` names.
USES_CREDENTIAL = ("http", "rss", "postgres_query", "notification", "discord_send")
#: Required fields: one name, or one of several.
NEEDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "state_scan": (("pattern", "stateType"),),
    "state_trigger": (("pattern", "stateType"),),
    "state_list": (("pattern", "stateType"),),
    "state_read": (("pattern", "path", "input", "stateType"),),
    "state_check": (("pattern", "path", "input", "stateType"),),
    "state_gate": (("pattern", "path", "input", "stateType"),),
    "state_write": (("pattern", "output", "path", "stateType"),),
    "state_transform": (("input",), ("output",), ("transform",)),
    "hardwired": (("json", "items", "value"),),
    "transform": (("expression",),),
    "if": (("condition",),),
    "http": (("url",),),
    "rss": (("url",),),
    "append_to_file": (("filepath", "path", "file"),),
    "run_command": (("command",),),
    "postgres_query": (("query",),),
    "llm": (("prompt",),),
    "claude_agent": (("prompt",),),
    "claude_json": (("prompt",),),
    "notification": (("message",),),
    "dialog": (("message",),),
    "prompt": (("message",),),
    "discord_send": (("channel_id",), ("message", "content")),
}
#: Fields that every executable node may have.
PINNED: Fields = {
    "pinned": {"type": "boolean", "description": "Give the output below in place of doing the work.", "rare": True},
    "pinnedOutput": {"description": "What a pinned node gives.", "rare": True},
    "credentialName": _text("The credential that it uses.", suggest="credentials", rare=True),
}

_STATES = {
    "state_scan": "Finds the entities that there are.",
    "state_trigger": "Finds the entities that there are; what follows runs for each.",
    "state_list": "Lists the states of a pattern.",
    "state_read": "Reads a state of the entity.",
    "state_check": "Lets the entity through if a state of it is there.",
    "state_gate": "Lets the entity through if a state of it is there.",
    "state_transform": "Makes a state from others, with a function of the application.",
    "state_write": "Writes a state of the entity.",
    "state_clear_failure": "Has no effect: failures are cleared when a state is built.",
}
#: Kinds under the names of another product, which files bring along: for a new node, `llm` does what they do.
IMPORTED = ("claude_agent", "claude_json")
_STARTS = ("start", "scheduled", "webhook")
_ENTRIES = (*_STARTS, "state_scan", "state_trigger", "state_list")
#: Kinds whose data may have any other field: it is passed to a function, or to the next nodes.
OPEN = ("set", "state_transform")


def kinds() -> list[WorkflowNodeKind]:
    """All kinds of nodes, including those of the application."""
    made = [
        WorkflowNodeKind(name, "states", about, schema_of(name), modes=("pipeline",), is_start=name in _ENTRIES)
        for name, about in _STATES.items()
    ]
    places = {name: at for at, name in enumerate(FIELDS)}
    for name in sorted(NODE_TYPES, key=lambda each: places.get(each, len(places))):
        known = NODE_TYPES[name]
        is_start = name in _STARTS
        own = name not in FIELDS and not is_start
        about = (inspect.getdoc(known.run) or "").partition("\n")[0]
        made.append(
            WorkflowNodeKind(
                name,
                "starts" if is_start else "own" if own else "imported" if name in IMPORTED else "work",
                about,
                schema_of(name),
                modes=("trigger",) if is_start or name in NOT_OF_PIPELINES else ("pipeline", "trigger"),
                per_item=known.per_item,
                is_start=is_start,
                exits=("true", "false") if name == "if" else (),
            )
        )
    return made


def is_known(type: str) -> bool:
    """Whether this kind exists, and can run here."""
    return type in _STATES or type in NODE_TYPES


def fields_of(type: str) -> Fields | None:
    """The fields of a kind of node; None if it may have any."""
    own = NODE_TYPES[type].fields if type in NODE_TYPES else None
    return own if own is not None else FIELDS.get(type)


def schema_of(type: str) -> dict[str, Any]:
    """The data of a kind of node, as a JSON Schema."""
    fields = fields_of(type)
    pinned = dict(PINNED) if type in NODE_TYPES else {}
    if type in USES_CREDENTIAL:
        pinned["credentialName"] = {**PINNED["credentialName"], "rare": False}
    needs = NEEDS.get(type, ())
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {**(fields or {}), **pinned},
        "required": [group[0] for group in needs if len(group) == 1],
        "additionalProperties": fields is None or type in OPEN,
    }
    groups = [{"anyOf": [{"required": [name]} for name in group]} for group in needs if len(group) > 1]
    return {**schema, "allOf": groups} if groups else schema


def transforms() -> list[str]:
    """The names of the functions that `state_transform` nodes and stages may call."""
    return sorted(TRANSFORMS)


_LABEL = {"type": ["string", "number"], "description": "For readers, and the product that it comes from.", "rare": True}
#: The top-level fields of a file, by its form.
FILE: dict[str, dict[str, Any]] = {
    "name": _text("What it is called; without it, the file's name."),
    "mode": {
        "enum": ["pipeline", "trigger"],
        "description": "pipeline: build what is missing or out of date. trigger: run once for each event.",
    },
    "stateRoot": _text("The folder that all patterns are in."),
    "stateStore": {"enum": ["filesystem", "database"], "description": "Where states are kept; without it, in files."},
    "scanInterval": _seconds("Seconds between two scans of all states.", default=60),
    "description": _text("For readers.", format="textarea"),
    "settings": {
        "type": "object",
        "description": "Settings of the whole file.",
        "rare": True,
        "properties": {
            "dataDirectory": _text("Another name for stateRoot."),
            "concurrencyGroups": {
                "type": "object",
                "description": "How many nodes of each group run at once.",
                "additionalProperties": {"type": "integer", "minimum": 1, "maximum": MOST_AT_ONCE},
            },
        },
    },
    "id": _LABEL,
    "version": _LABEL,
}
STAGED: dict[str, dict[str, Any]] = {
    **{name: FILE[name] for name in FILE if name != "settings"},
    "maxConcurrentEntities": _count("How many entities are built at once.", minimum=1, maximum=MOST_AT_ONCE),
    "retryPolicy": {
        "type": "object",
        "description": "When a failed state is retried.",
        "properties": {
            "maxAttempts": _count(
                "The number of attempts after which a state needs attention.", minimum=1, maximum=MOST_ATTEMPTS
            ),
            "backoffSeconds": {
                "type": "array",
                "items": {"type": "number", "maximum": int(LONGEST)},
                "description": "Delays between attempts.",
            },
        },
    },
}
#: The fields of a stage; those of its node depend on the node's type.
STAGE: dict[str, dict[str, Any]] = {
    "name": _text("What people call it; without it, its id.", rare=True),
    "pattern": _text("Where its states are: input/{id}.txt, or a folder: daily/{date}/."),
    "input": _text("The stage that it is made from."),
    "validation": {
        "type": "object",
        "description": "What its states must be.",
        "properties": {"minSize": _count("A smaller state, in bytes, is a failure.")},
    },
    "description": _text("For readers.", format="textarea", rare=True),
}
#: The fields of the parts that are not nodes' data.
STAGE_FIELDS = ("id", "type", "node", "then", *STAGE)
STAGE_NODE_FIELDS = ("typeId", "data", "then", "id", "name")
NODE_FIELDS = ("id", "typeId", "name", "position", "data", "agentConfig")
AGENT_FIELDS = ("concurrencyGroup", "tags")
LINK_FIELDS = ("id", "sourceNodeId", "sourceConnectorId", "targetNodeId", "targetConnectorId")
