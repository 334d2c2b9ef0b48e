"""The names of `workflows`, module by module, and what Tidemill has for each."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from types import ModuleType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from tidemill.flows import errors, testing
from tidemill.flows.compat import state_store as store_functions
from tidemill.flows.definition import collect, decorators, events, resource, signature, workflow
from tidemill.flows.definition.retry_policy import StepRetryPolicy
from tidemill.flows.encoding import serializers
from tidemill.flows.runner import runtime, workflow_handler
from tidemill.flows.runner.instrumentation import spans
from tidemill.flows.runner.steps import context
from tidemill.flows.view import representation

PACKAGE = "workflows"
ALIAS = "llama_agents.workflows"
BUSY_WAIT_DELAY = 0.01


class WorkflowMeta(type):
    """The metaclass of workflows in `workflows`; classes that are also something else derive their metaclass from it.

    Tidemill's `Workflow` needs no metaclass, so that it can be combined with any class.
    """


class WaitingForEvent(Exception):
    """The exception with which a wait leaves a step in `workflows`. Tidemill never raises it: the step is suspended."""


class ServiceNotFoundError(Exception):
    """A nested workflow was asked for under a name that was not added."""


class ServiceManager:
    """Nested workflows by name, as old versions of `workflows` had them."""

    def __init__(self) -> None:
        self._services: dict[str, Any] = {}

    def get(self, name: str, default: Any = None) -> Any:
        """Return the workflow of this name."""
        found = self._services.get(name, default)
        if found is None:
            raise ServiceNotFoundError(f"Service {name} not found")
        return found

    def add(self, name: str, service: Any) -> None:
        """Add a workflow under a name."""
        self._services[name] = service


def get_steps_from_class(workflow_class: type) -> dict[str, Callable[..., Any]]:
    """Return the step functions of a workflow class by name."""
    return {name: spec.function for name, spec in decorators.steps_of(workflow_class).items()}


def get_steps_from_instance(flow: Any) -> dict[str, Callable[..., Any]]:
    """Return the bound step methods of a workflow by name."""
    steps = decorators.steps_of(type(flow)).items()
    return {name: spec.function if spec.is_free else spec.function.__get__(flow) for name, spec in steps}


def validate_graph(flow: Any) -> bool:
    """Validate the graph of a workflow's steps and events; returns True if it asks for human input."""
    return flow.validate()


def inspect_signature(fn: Callable[..., Any], localns: dict[str, Any] | None = None) -> signature.StepSignature:
    """Return the signature of a function as a step."""
    if not callable(fn):
        raise TypeError(f"Expected a callable object, got {type(fn).__name__}")
    return signature.read_signature(fn, localns)


def is_free_function(qualname: str) -> bool:
    """Return whether a function of this qualified name is not a method."""
    if not qualname:
        raise ValueError("The qualified name cannot be empty")
    return "." not in qualname.rpartition("<locals>.")[2]


def validate_step_signature(spec: signature.StepSignature) -> None:
    """Do nothing: an invalid step is rejected when its signature is read."""


def get_param_types(param: inspect.Parameter, type_hints: dict[str, Any]) -> list[Any]:
    """Return the types of a parameter, without None."""
    found = type_hints.get(param.name, param.annotation)
    if found is inspect.Parameter.empty:
        return [Any]
    if get_origin(found) in (Union, UnionType):
        return [each for each in get_args(found) if each is not type(None)]
    return [found]


def get_return_types(func: Callable[..., Any], localns: dict[str, Any] | None = None) -> list[Any]:
    """Return the types that a step is annotated to return, alone or in a list, without None."""
    hint = get_type_hints(func, localns=localns).get("return", inspect.Parameter.empty)
    if hint is inspect.Parameter.empty:
        return []
    return list(dict.fromkeys(_flattened(hint))) or [type(None)]


def _flattened(hint: Any) -> list[Any]:
    if hint is None or hint is type(None):
        return []
    if get_origin(hint) in (Union, UnionType, list):
        return [each for member in get_args(hint) for each in _flattened(member)]
    return [hint]


def import_module_from_qualified_name(qualified_name: str) -> Any:
    """Return the attribute that a qualified name means; its module is imported."""
    module, _, name = qualified_name.rpartition(".") if qualified_name else ("", "", "")
    if not module:
        raise ValueError("Qualified name must be in format 'module.attribute'")
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ImportError(f"Failed to import module {module}: {error}") from error
    except AttributeError as error:
        raise AttributeError(f"Attribute {name} not found in module {module}: {error}") from error


def get_qualified_name(value: Any) -> str:
    """Return the module and class of a value, joined by a dot."""
    return f"{value.__module__}.{type(value).__name__}"


def modules() -> dict[str, dict[str, Any]]:
    """Return the names that each module of `workflows` provides."""
    contexts = {"Context": context.Context}
    writing = _named(serializers, "BaseSerializer", "JsonSerializer", "PickleSerializer")
    plugins = _named(runtime, "BasicRuntime", "basic_runtime", "get_current_runtime")
    graph = _public(representation, "Workflow") | _named(representation, "get_workflow_representation")
    return {
        "workflows": {
            "Context": context.Context,
            "Workflow": workflow.Workflow,
            "catch_error": decorators.catch_error,
            "step": decorators.step,
        },
        "workflows.events": {
            **{name: getattr(events, name) for name in events.__all__},
            "EventType": type[events.Event],
        },
        "workflows.errors": _public(errors, "Workflow") | _public(errors, "Context"),
        "workflows.decorators": {
            "step": decorators.step,
            "catch_error": decorators.catch_error,
            "make_step_function": decorators.make_step_function,
            "StepConfig": signature.StepSpec,
            "StepFunction": Callable[..., Any],
            "CatchErrorHandler": Callable[..., Any],
            "StepRole": signature.StepRole,
            "StepGraphCheck": Literal["reachability", "dead_end"],
            "WorkflowGraphCheck": Literal["reachability", "terminal_event", "dead_end"],
        },
        "workflows.collect": _named(collect, "Cardinality", "All", "Take", "Collect"),
        "workflows.context": contexts | writing,
        "workflows.context.context": contexts,
        "workflows.context.serializers": writing | {"JsonPickleSerializer": serializers.JsonPickleSerializer},
        "workflows.context.state_store": _named(store_functions, *store_functions.__all__),
        "workflows.context.utils": {
            "get_qualified_name": get_qualified_name,
            "import_module_from_qualified_name": import_module_from_qualified_name,
        },
        "workflows.handler": {"WorkflowHandler": workflow_handler.WorkflowHandler},
        "workflows.workflow": {"Workflow": workflow.Workflow, "WorkflowMeta": WorkflowMeta},
        "workflows.types": {"StopEventT": workflow.StopEventT, "RunResultT": Any},
        "workflows.utils": {
            "BUSY_WAIT_DELAY": BUSY_WAIT_DELAY,
            "StepSignatureSpec": signature.StepSignature,
            "inspect_signature": inspect_signature,
            "validate_step_signature": validate_step_signature,
            "get_steps_from_class": get_steps_from_class,
            "get_steps_from_instance": get_steps_from_instance,
            "is_free_function": is_free_function,
            "_get_param_types": get_param_types,
            "_get_return_types": get_return_types,
        },
        "workflows.retry_policy": {
            **_defined_in(sys.modules[StepRetryPolicy.__module__]),
            "RetryPolicy": StepRetryPolicy,
        },
        "workflows.resource": {
            **_named(resource, "Resource", "ResourceConfig"),
            **_named(resource, "ResourceDefinition", "ResourceDescriptor", "ResourceManager"),
        },
        "workflows.service": {"ServiceManager": ServiceManager, "ServiceNotFoundError": ServiceNotFoundError},
        "workflows.runtime": {},
        "workflows.runtime.types": {},
        "workflows.runtime.types.results": {"WaitingForEvent": WaitingForEvent},
        "workflows.runtime.types.step_function": _span_events(),
        "workflows.testing": {"WorkflowTestRunner": testing.WorkflowTestRunner},
        "workflows.testing.runner": _named(testing, "WorkflowTestRunner", "WorkflowTestResult"),
        "workflows.plugins": plugins,
        "workflows.plugins.basic": plugins,
        "workflows.representation": graph,
        "workflows.representation.types": graph,
        "workflows.representation.build": _named(representation, "get_workflow_representation"),
        "workflows.representation.validate": {"validate_graph": validate_graph},
    }


def _span_events() -> dict[str, Any]:
    """Return the events that workflows add to the spans of `llama_index_instrumentation`, if that is installed."""
    if importlib.util.find_spec(spans.PACKAGE) is None:
        return {}
    found = importlib.import_module("tidemill.flows.runner.instrumentation.span_events")
    return _named(found, "SpanCancelledEvent", "WorkflowRunOutputEvent", "WorkflowStepOutputEvent")


def _named(module: ModuleType, *names: str) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names}


def _public(module: ModuleType, prefix: str) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name.startswith(prefix)}


def _defined_in(module: ModuleType) -> dict[str, Any]:
    """Return the public names that a module defines itself, without its imports."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }
