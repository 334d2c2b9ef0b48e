"""Read the signature of a step, and the `StepSpec` that describes a declared step.

    async def review(self, ctx: Context[Review], ev: Draft | Redraft, llm: Annotated[LLM, Resource(get_llm)]) -> Verdict

Parameters may have any order and are recognised by their annotations: events, one `list[E]` of events, the context, and
resources. Other parameters follow Python's rules: one with a default keeps it, one without makes the call fail.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from tidemill.core.limits.resources import Resources
from tidemill.flows.definition.collect import All, Collect, Take
from tidemill.flows.definition.events import Event
from tidemill.flows.definition.resource import ResourceDefinition, resource_definition
from tidemill.flows.definition.retry_policy import StepRetryPolicy
from tidemill.flows.errors import WorkflowValidationError

EventClass = type[Event]
StepRole = Literal["step", "catch_error"]

_ASYNC_ITERATORS = (AsyncIterator, AsyncIterable, AsyncGenerator)


class StepJobOptions(msgspec.Struct, frozen=True):
    """The options of the jobs of a step on a queue; None for the default."""

    budget: float | None = None
    priority: int | None = None
    required_model: str | None = None
    resources: Resources | None = None


class StepSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A declared step. The field names follow the options of `@step` and the terms of LlamaIndex Workflows."""

    name: str
    function: Callable[..., Any]
    is_free: bool = False
    """A free function, which is called without a workflow instance."""
    is_async: bool = True

    accepted_events: tuple[EventClass, ...]
    """All event classes that start the step, in the order of its parameters."""
    event_name: str
    """The (first) parameter that takes an event."""
    collect_params: tuple[tuple[str, EventClass], ...] = ()
    """For a step with several event parameters: each parameter with its class. The step runs with one event of each."""
    collection_param: tuple[str, tuple[EventClass, ...]] | None = None
    """For a step that takes a `list[E]`: the parameter and the classes of its members."""
    collection_policy: Collect | None = None
    """How many events of a batch a `list[E]` parameter takes."""

    return_types: tuple[EventClass, ...] = ()
    """All event classes that the step may return, alone or in a list."""
    bare_return_types: tuple[EventClass, ...] = ()
    """The event classes that it may return alone."""
    listed_return_types: tuple[EventClass, ...] = ()
    """The event classes that it may return in a list."""

    context_parameter: str | None = None
    context_state_type: Any = None
    """The state type that the context is annotated with, as in `Context[State]`."""
    resources: tuple[ResourceDefinition, ...] = ()

    num_workers: int = 4
    retry_policy: StepRetryPolicy | None = None
    timeout: float | None = None
    """The timeout of one attempt in seconds."""
    queue: str | None = None
    """The job queue whose workers run the step; None runs it in the process that owns the run."""
    job_options: StepJobOptions = StepJobOptions()
    accept_event_subclasses: bool = False
    skip_graph_checks: tuple[str, ...] = ()
    renamed_from: tuple[str, ...] = ()
    """The names that the step had in earlier versions."""

    role: StepRole = "step"
    catch_error_for_steps: tuple[str, ...] | None = None
    """For an error handler: the steps that it handles; None means all steps without another handler."""
    catch_error_max_recoveries: int = 1

    @property
    def is_fan_out(self) -> bool:
        """Whether the step may return a list, which opens a batch."""
        return bool(self.listed_return_types)

    @property
    def is_handler(self) -> bool:
        return self.role == "catch_error"

    def accepts(self, event_class: type) -> bool:
        """Return whether the step takes events of this class; a subclass counts only where the step allows it."""
        if self.accept_event_subclasses:
            return issubclass(event_class, self.accepted_events)
        return event_class in self.accepted_events


class StepSignature(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters and return types of a step, read from its annotations."""

    accepted_events: tuple[EventClass, ...]
    event_name: str
    collect_params: tuple[tuple[str, EventClass], ...]
    collection_param: tuple[str, tuple[EventClass, ...]] | None
    collection_policy: Collect | None
    return_types: tuple[EventClass, ...]
    bare_return_types: tuple[EventClass, ...]
    listed_return_types: tuple[EventClass, ...]
    context_parameter: str | None
    context_state_type: Any
    resources: tuple[ResourceDefinition, ...]


def read_signature(function: Callable[..., Any], namespace: dict[str, Any] | None = None) -> StepSignature:
    """Read the annotations of a step; a `WorkflowValidationError` if they are invalid for a step."""
    where = f"step {function.__qualname__}"
    hints = _resolve_hints(function, namespace)
    if "return" not in hints:
        raise WorkflowValidationError(
            "Return types of workflows step functions must be annotated with their type: "
            f"{where} needs one, such as `-> StopEvent` or `-> None`"
        )
    if inspect.isasyncgenfunction(function) or get_origin(hints["return"]) in _ASYNC_ITERATORS:
        raise WorkflowValidationError(
            f"Async-iterator fan-out is not supported: {where} yields its events. Return list[E] for a batch, "
            "or send the events one by one with ctx.send_event"
        )
    context_parameter, state_type = None, None
    resources: list[ResourceDefinition] = []
    single: list[tuple[str, tuple[EventClass, ...]]] = []
    lists: list[tuple[str, tuple[EventClass, ...], Collect]] = []
    for name in inspect.signature(function).parameters:
        if name not in hints:
            continue
        annotation = hints[name]
        if found := resource_definition(name, annotation, namespace):
            resources.append(found)
        elif _is_context(annotation):
            context_parameter, state_type = name, next(iter(get_args(annotation)), None)
        elif collection := _read_collection(name, annotation):
            lists.append((name, *collection))
        elif events := tuple(_event_classes(annotation)):
            single.append((name, events))
    _check_event_parameters(where, single, lists)
    bare, listed = _read_returns(hints["return"])
    members = lists[0] if lists else None
    return StepSignature(
        accepted_events=members[1] if members else _unique(cls for _, events in single for cls in events),
        event_name=members[0] if members else single[0][0],
        collect_params=tuple((name, events[0]) for name, events in single) if len(single) > 1 else (),
        collection_param=members[:2] if members else None,
        collection_policy=members[2] if members else None,
        return_types=_unique((*listed, *bare)),
        bare_return_types=bare,
        listed_return_types=listed,
        context_parameter=context_parameter,
        context_state_type=state_type,
        resources=tuple(resources),
    )


def _check_event_parameters(where: str, single: list[Any], lists: list[Any]) -> None:
    if not single and not lists:
        raise WorkflowValidationError(
            "Step signature must have at least one parameter annotated as type Event: no event would ever start "
            f"{where}; write for example `ev: StartEvent`"
        )
    if len(lists) > 1:
        raise WorkflowValidationError(
            "A step may declare at most one list[E] collection parameter, but found both "
            f"{lists[0][0]!r} and {lists[1][0]!r} in {where}; take one list, or several single events"
        )
    if lists and single:
        raise WorkflowValidationError(
            "A list[E] collection parameter cannot be combined with other event parameters, but "
            f"{where} has {lists[0][0]!r} and {single[0][0]!r}; take one list, or several single events"
        )
    if len(single) > 1:
        for name, events in single:
            if len(events) > 1:
                classes = " | ".join(cls.__name__ for cls in events)
                raise WorkflowValidationError(
                    "Collect-mode steps (more than one event parameter) require each event parameter to declare a "
                    f"single event type, but parameter {name!r} declares {len(events)}: {classes}, in {where}"
                )


def _resolve_hints(function: Callable[..., Any], namespace: dict[str, Any] | None) -> dict[str, Any]:
    try:
        return get_type_hints(function, localns=namespace, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        raise WorkflowValidationError(
            f"Failed to resolve type annotations for {function.__qualname__}: {error}; "
            "define or import every name before the step"
        ) from error


def _is_context(annotation: Any) -> bool:
    return getattr(get_origin(annotation) or annotation, "is_flow_context", False) is True


def _read_collection(name: str, annotation: Any) -> tuple[tuple[EventClass, ...], Collect] | None:
    """Return the event classes and the policy of a `list[E]` parameter; None if it is not one."""
    policy = None
    if get_origin(annotation) is Annotated:
        annotation, *marks = get_args(annotation)
        policy = next((mark for mark in marks if isinstance(mark, Collect)), None)
        if policy is None:
            return None
    lists = [each for each in _union_members(annotation) if each is not type(None)]
    members: tuple[EventClass, ...] = ()
    if len(lists) == 1 and get_origin(lists[0]) is list:
        members = tuple(_event_classes(get_args(lists[0])[0]))
    if not members:
        if policy is not None:
            raise WorkflowValidationError(
                f"Parameter {name!r} carries a Collect marker but is not annotated as list[E] of an Event subclass"
            )
        return None
    if policy is not None and not isinstance(policy.cardinality, All | Take):
        raise WorkflowValidationError(
            f"Collect cardinality on {name!r} must be All() or Take(n), not {policy.cardinality!r}"
        )
    return members, policy or Collect()


def _read_returns(annotation: Any) -> tuple[tuple[EventClass, ...], tuple[EventClass, ...]]:
    """Return the event classes that may be returned alone, and those that may be returned in a list."""
    bare: list[EventClass] = []
    listed: list[EventClass] = []
    for member in _union_members(annotation):
        if get_origin(member) is list:
            listed.extend(_event_classes(get_args(member)[0]))
        else:
            bare.extend(_event_classes(member))
    return _unique(bare), _unique(listed)


def _event_classes(annotation: Any) -> Iterator[EventClass]:
    for member in _union_members(annotation):
        if isinstance(member, type) and get_origin(member) is None and issubclass(member, Event):
            yield member


def _union_members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _unique(classes: Iterable[EventClass]) -> tuple[EventClass, ...]:
    return tuple(dict.fromkeys(classes))
