"""Run programs that are written for LlamaIndex Workflows, unmodified, on Tidemill.

    python -m tidemill.flows.compat program.py arguments...

`install()` makes the public module names of `workflows` resolve to Tidemill's modules: call it before the program
imports them. Importing a name that Tidemill does not provide raises an ImportError.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.flows import errors, testing
from tidemill.flows.definition import collect, decorators, events, resource, signature, workflow
from tidemill.flows.definition.retry_policy import RetryPolicy
from tidemill.flows.encoding import context_dict, serializers
from tidemill.flows.encoding.events import qualified_name
from tidemill.flows.runner import context, runtime, state_store, workflow_handler
from tidemill.flows.view import representation

_MARK = "__tidemill__"


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
    return signature.read_signature(fn, localns)


def is_free_function(qualname: str) -> bool:
    """Return whether a function of this qualified name is not a method."""
    return "." not in qualname.rpartition("<locals>.")[2]


def validate_step_signature(spec: signature.StepSignature) -> None:
    """Do nothing: an invalid step is rejected when its signature is read."""


def import_module_from_qualified_name(qualified_name: str) -> Any:
    """Return the class of this name from a loaded module."""
    return serializers.JsonSerializer().resolve_class(qualified_name)


def get_qualified_name(value: Any) -> str:
    return qualified_name(value if isinstance(value, type) else type(value))


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
        "workflows.events": {name: getattr(events, name) for name in events.__all__},
        "workflows.errors": _public(errors, "Workflow") | _public(errors, "Context"),
        "workflows.decorators": {
            "step": decorators.step,
            "catch_error": decorators.catch_error,
            "make_step_function": decorators.make_step_function,
            "StepConfig": signature.StepSpec,
            "StepFunction": Callable[..., Any],
            "CatchErrorHandler": Callable[..., Any],
        },
        "workflows.collect": _named(collect, "Cardinality", "All", "Take", "Collect"),
        "workflows.context": contexts | writing,
        "workflows.context.context": contexts,
        "workflows.context.serializers": writing | {"JsonPickleSerializer": serializers.JsonPickleSerializer},
        "workflows.context.state_store": {
            **_named(state_store, "DictState", "InMemoryStateStore", "StateStore"),
            "UnserializableKeyWarning": context_dict.UnserializableKeyWarning,
        },
        "workflows.context.utils": {
            "get_qualified_name": get_qualified_name,
            "import_module_from_qualified_name": import_module_from_qualified_name,
        },
        "workflows.handler": {"WorkflowHandler": workflow_handler.WorkflowHandler},
        "workflows.workflow": {"Workflow": workflow.Workflow, "WorkflowMeta": type(workflow.Workflow)},
        "workflows.types": {"StopEventT": workflow.StopEventT},
        "workflows.utils": {
            "StepSignatureSpec": signature.StepSignature,
            "inspect_signature": inspect_signature,
            "validate_step_signature": validate_step_signature,
            "get_steps_from_class": get_steps_from_class,
            "get_steps_from_instance": get_steps_from_instance,
            "is_free_function": is_free_function,
        },
        "workflows.retry_policy": _defined_in(sys.modules[RetryPolicy.__module__]),
        "workflows.resource": {
            **_named(resource, "Resource", "ResourceConfig"),
            **_named(resource, "ResourceDefinition", "ResourceDescriptor", "ResourceManager"),
        },
        "workflows.testing": {"WorkflowTestRunner": testing.WorkflowTestRunner},
        "workflows.testing.runner": _named(testing, "WorkflowTestRunner", "WorkflowTestResult"),
        "workflows.plugins": plugins,
        "workflows.plugins.basic": plugins,
        "workflows.representation": graph,
        "workflows.representation.types": graph,
        "workflows.representation.build": _named(representation, "get_workflow_representation"),
        "workflows.representation.validate": {"validate_graph": validate_graph},
    }


def install() -> None:
    """Make `import workflows` import Tidemill's modules. A second call does nothing."""
    known = sys.modules.get("workflows")
    if known is not None and not hasattr(known, _MARK):
        raise ConfigError(
            "the package `workflows` is already imported; call tidemill.flows.compat.install() before anything "
            "imports it"
        )
    if known is not None:
        return
    for name, members in modules().items():
        sys.modules[name] = _module(name, members)
    for name in modules():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[name])


def run_program(path: str | Path, argv: Sequence[str] = ()) -> None:
    """Run a program file as `__main__` with these arguments, with `workflows` provided by Tidemill."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"the program file {file} does not exist")
    install()
    before = sys.argv, sys.path[:]
    sys.argv = [str(file), *argv]
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        runpy.run_path(str(file), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before


def _module(name: str, members: Mapping[str, Any]) -> ModuleType:
    made = ModuleType(name, "Tidemill's implementation of this module of `workflows`.")
    made.__path__ = []  # type: ignore[attr-defined]  # every module may have submodules
    vars(made).update(members)
    vars(made)["__all__"] = list(members)
    setattr(made, _MARK, True)
    return made


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


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m tidemill.flows.compat program.py [arguments...]")
    run_program(sys.argv[1], sys.argv[2:])
