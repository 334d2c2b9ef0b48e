"""`@step` and `@catch_error`: declare functions as the steps of a workflow.

    class Article(Workflow):
        @step
        async def write(self, ev: StartEvent) -> Draft: ...

        @step(num_workers=8, retry_policy=retry_policy(), timeout="30s", queue="gpu", budget="10m", priority=7)
        async def review(self, ev: Draft) -> StopEvent: ...

        @catch_error(for_steps=["review"], max_recoveries=2)
        async def on_failure(self, ev: StepFailedEvent) -> Draft: ...

    @step(workflow=Article)
    async def check(ctx: Context, ev: Draft) -> StopEvent: ...

The function itself does not change; its declaration is stored in its `_step_config`. A step that is not async runs in a
thread.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar, overload

from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import is_priority
from tidemill.core.limits.resources import Needs, parse_resources
from tidemill.flows.definition.events import StepFailedEvent
from tidemill.flows.definition.retry_policy import StepRetryPolicy, check_policy
from tidemill.flows.definition.signature import StepJobOptions, StepRole, StepSpec, read_signature
from tidemill.flows.errors import WorkflowValidationError

F = TypeVar("F", bound=Callable[..., Any])

SPEC_ATTRIBUTE = "_step_config"
FREE_STEPS_ATTRIBUTE = "_free_steps"
MIGRATION_ATTRIBUTE = "_migrates_runs"


@overload
def step(func: F, /) -> F: ...


@overload
def step(
    func: None = None,
    *,
    workflow: Any = None,
    num_workers: int = 4,
    retry_policy: StepRetryPolicy | None = None,
    skip_graph_checks: list[str] | None = None,
    accept_event_subclasses: bool = False,
    timeout: Duration | None = None,
    queue: str | None = None,
    budget: Duration | None = None,
    priority: int | None = None,
    required_model: str | None = None,
    resources: Needs | None = None,
    renamed_from: str | list[str] | None = None,
) -> Callable[[F], F]: ...


def step(
    func: Any = None,
    *,
    workflow: Any = None,
    num_workers: int = 4,
    retry_policy: StepRetryPolicy | None = None,
    skip_graph_checks: list[str] | None = None,
    accept_event_subclasses: bool = False,
    timeout: Duration | None = None,
    queue: str | None = None,
    budget: Duration | None = None,
    priority: int | None = None,
    required_model: str | None = None,
    resources: Needs | None = None,
    renamed_from: str | list[str] | None = None,
) -> Any:
    """Declare a function as a step; a function that is not a method needs its `workflow` class.

    `budget`, `priority`, `required_model` and `resources` are those of the step's jobs, as in `app.task`: they need a
    `queue`.
    Runs that an earlier version has begun go on here at the steps that `renamed_from` names.
    """
    options = {
        "num_workers": num_workers,
        "retry_policy": retry_policy,
        "skip_graph_checks": tuple(skip_graph_checks or ()),
        "accept_event_subclasses": accept_event_subclasses,
        "timeout": timeout,
        "queue": queue,
        "budget": budget,
        "priority": priority,
        "required_model": required_model,
        "resources": resources,
        "renamed_from": renamed_from,
    }

    def declare(function: Any) -> Any:
        is_free = _is_free(function)
        if is_free and workflow is None:
            raise WorkflowValidationError(
                f"To decorate {function.__name__} please pass a workflow class to the @step decorator: "
                "it is not a method, so write @step(workflow=YourWorkflow)"
            )
        _declare(function, _names_around(sys._getframe(1), function), is_free=is_free, **options)
        if workflow is not None:
            workflow.add_step(function)
        return function

    if func is None:
        return declare
    if _is_free(func):
        return declare(func)  # raises, because no workflow is named
    _declare(func, _names_around(sys._getframe(1), func), is_free=False, **options)
    return func


@overload
def catch_error(func: F, /) -> F: ...


@overload
def catch_error(
    func: None = None,
    *,
    for_steps: list[str] | None = None,
    max_recoveries: int = 1,
    renamed_from: str | list[str] | None = None,
) -> Callable[[F], F]: ...


def catch_error(
    func: Any = None,
    *,
    for_steps: list[str] | None = None,
    max_recoveries: int = 1,
    renamed_from: str | list[str] | None = None,
) -> Any:
    """Declare a method as the handler of steps that have failed their last attempt.

    Without `for_steps` it handles all steps that no other handler names. Work that follows from a recovery may fail and
    be recovered again, up to `max_recoveries` times in one chain of events.
    """
    if for_steps is not None and not (isinstance(for_steps, list) and all(isinstance(one, str) for one in for_steps)):
        raise WorkflowValidationError(
            f"@catch_error for_steps must be None or a list of step name strings, not {for_steps!r}"
        )
    if not is_count(max_recoveries):
        raise WorkflowValidationError(f"@catch_error max_recoveries must be an integer >= 1, not {max_recoveries!r}")
    options = {
        "role": "catch_error",
        "for_steps": None if for_steps is None else tuple(for_steps),
        "max_recoveries": max_recoveries,
        "renamed_from": renamed_from,
    }

    def declare(function: Any) -> Any:
        _declare(function, _names_around(sys._getframe(1), function), **options)
        return function

    if func is None:
        return declare
    _declare(func, _names_around(sys._getframe(1), func), **options)
    return func


def migrate(method: F, /) -> F:
    """Declare a method that takes runs of older versions along: it gets an `OlderRun` and returns the changed one.

    It runs once for each run, when this version takes the run over, after steps and classes have been renamed.
    """
    setattr(method, MIGRATION_ATTRIBUTE, True)
    return method


def migration_of(workflow_class: type) -> str | None:
    """Return the name of the method of a workflow class that migrates runs; None if it has none."""
    found = [
        name
        for name in dict.fromkeys(name for cls in workflow_class.__mro__ for name in vars(cls))
        if getattr(getattr(workflow_class, name, None), MIGRATION_ATTRIBUTE, False)
    ]
    if len(found) > 1:
        raise WorkflowValidationError(
            f"{workflow_class.__name__} has {len(found)} @migrate methods: {', '.join(found)}; keep one"
        )
    return found[0] if found else None


def make_step_function(
    func: Any,
    num_workers: int = 4,
    retry_policy: StepRetryPolicy | None = None,
    localns: dict[str, Any] | None = None,
    skip_graph_checks: list[str] | None = None,
    accept_event_subclasses: bool = False,
) -> Any:
    """Declare a function as a step without a workflow; `Workflow.add_step` adds it to one."""
    _declare(
        func,
        localns,
        is_free=_is_free(func),
        num_workers=num_workers,
        retry_policy=retry_policy,
        skip_graph_checks=tuple(skip_graph_checks or ()),
        accept_event_subclasses=accept_event_subclasses,
    )
    return func


def step_spec(function: Any) -> StepSpec | None:
    """Return the declaration of a step function; None if the function is not a step."""
    spec = getattr(function, SPEC_ATTRIBUTE, None)
    return spec if isinstance(spec, StepSpec) else None


_added: list[str] = []


def additions() -> int:
    """Return how many steps were added to existing classes so far."""
    return len(_added)


def attach_step(workflow_class: type, function: Any) -> None:
    """Add a free function to the steps of a workflow class and of its subclasses."""
    spec = step_spec(function)
    if spec is None:
        name = getattr(function, "__qualname__", repr(function))
        raise WorkflowValidationError(f"Step function {name} is missing the `@step` decorator: decorate it with @step")
    if spec.name in steps_of(workflow_class):
        raise WorkflowValidationError(
            f"A step {spec.name} is already part of this workflow, please choose another name: "
            f"{workflow_class.__name__} has it"
        )
    own = workflow_class.__dict__.get(FREE_STEPS_ATTRIBUTE)
    if own is None:
        own = {}
        setattr(workflow_class, FREE_STEPS_ATTRIBUTE, own)
    own[spec.name] = spec
    _added.append(spec.name)


def steps_of(workflow_class: type) -> dict[str, StepSpec]:
    """Return the steps of a workflow class in the order of declaration, those of its bases first.

    A method that is overridden without `@step` is no longer a step.
    """
    found: dict[str, StepSpec] = {}
    for cls in reversed(workflow_class.__mro__):
        for name, member in vars(cls).items():
            spec = None if isinstance(member, staticmethod | classmethod) else step_spec(member)
            if spec is not None:
                found[name] = spec
            else:
                found.pop(name, None)
        found.update(cls.__dict__.get(FREE_STEPS_ATTRIBUTE, {}))
    return found


def _declare(
    function: Any,
    namespace: dict[str, Any] | None,
    *,
    is_free: bool = False,
    num_workers: int = 4,
    retry_policy: StepRetryPolicy | None = None,
    skip_graph_checks: tuple[str, ...] = (),
    accept_event_subclasses: bool = False,
    timeout: Duration | None = None,
    queue: str | None = None,
    budget: Duration | None = None,
    priority: int | None = None,
    required_model: str | None = None,
    resources: Needs | None = None,
    renamed_from: str | list[str] | None = None,
    role: StepRole = "step",
    for_steps: tuple[str, ...] | None = None,
    max_recoveries: int = 1,
) -> None:
    where = f"step {function.__qualname__}"
    if not is_count(num_workers):
        raise WorkflowValidationError(f"{where}: num_workers must be an integer greater than 0, not {num_workers!r}")
    if retry_policy is not None and (why := check_policy(retry_policy)) is not None:
        raise WorkflowValidationError(f"{where}: retry_policy: {retry_policy!r} {why}")
    signature = read_signature(function, namespace)
    if role == "catch_error" and signature.accepted_events != (StepFailedEvent,):
        raise WorkflowValidationError(
            f"@catch_error handler '{function.__name__}' must accept StepFailedEvent as its event parameter, "
            "and no other event"
        )
    spec = StepSpec(
        name=function.__name__,
        function=function,
        is_free=is_free,
        is_async=inspect.iscoroutinefunction(function),
        accepted_events=signature.accepted_events,
        event_name=signature.event_name,
        collect_params=signature.collect_params,
        collection_param=signature.collection_param,
        collection_policy=signature.collection_policy,
        return_types=signature.return_types,
        bare_return_types=signature.bare_return_types,
        listed_return_types=signature.listed_return_types,
        context_parameter=signature.context_parameter,
        context_state_type=signature.context_state_type,
        resources=signature.resources,
        num_workers=num_workers,
        retry_policy=retry_policy,
        timeout=_seconds(timeout, f"{where}: timeout"),
        queue=_queue_name(queue, where),
        job_options=_job_options(queue, budget, priority, required_model, resources, where),
        accept_event_subclasses=accept_event_subclasses,
        skip_graph_checks=skip_graph_checks,
        renamed_from=_former_names(renamed_from, function.__name__, where),
        role=role,
        catch_error_for_steps=for_steps,
        catch_error_max_recoveries=max_recoveries,
    )
    setattr(function, SPEC_ATTRIBUTE, spec)


def _names_around(frame: FrameType | None, function: Any) -> dict[str, Any] | None:
    """Return the local names that string annotations may use, from the class body and the enclosing functions."""
    annotations = getattr(function, "__annotations__", {}).values()
    if not any(isinstance(annotation, str) for annotation in annotations):
        return None
    scopes: list[dict[str, Any]] = []
    while frame is not None and frame.f_locals is not frame.f_globals and frame.f_globals is function.__globals__:
        scopes.append(dict(frame.f_locals))
        frame = frame.f_back
    names: dict[str, Any] = {}
    for scope in reversed(scopes):
        names.update(scope)
    return names


def _is_free(function: Any) -> bool:
    """Return whether a function is declared outside of any class."""
    return "." not in function.__qualname__.rpartition("<locals>.")[2]


def _seconds(duration: Duration | None, what: str) -> float | None:
    try:
        return None if duration is None else parse_duration(duration, what=what)
    except ConfigError as error:
        raise WorkflowValidationError(str(error)) from error


def _job_options(
    queue: str | None,
    budget: Duration | None,
    priority: int | None,
    required_model: str | None,
    resources: Needs | None,
    where: str,
) -> StepJobOptions:
    given = {"budget": budget, "priority": priority, "required_model": required_model, "resources": resources}
    used = [name for name, value in given.items() if value is not None]
    if used and queue is None:
        raise WorkflowValidationError(f"{where}: {', '.join(used)}: only a step on a queue has jobs; give it a queue=")
    if priority is not None and not is_priority(priority):
        raise WorkflowValidationError(f"{where}: priority {priority!r} is outside 0 to 9 (9 runs first)")
    try:
        needs = None if resources is None else parse_resources(resources)
    except ConfigError as error:
        raise WorkflowValidationError(f"{where}: {error}") from error
    return StepJobOptions(_seconds(budget, f"{where}: budget"), priority, required_model, needs)


def _former_names(names: Any, name: str, where: str) -> tuple[str, ...]:
    former = (names,) if isinstance(names, str) else tuple(names or ())
    for each in former:
        if not isinstance(each, str) or not each or each == name:
            raise WorkflowValidationError(f"{where}: renamed_from: {each!r} is not a former name of the step")
    return former


def _queue_name(queue: Any, where: str) -> str | None:
    if queue is None or (isinstance(queue, str) and queue):
        return queue
    raise WorkflowValidationError(f"{where}: queue: {queue!r} is not the name of a queue")


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
