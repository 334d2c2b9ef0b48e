"""The names of `workflows` that resolve to ours."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import pytest

from tidemill.core.errors import ConfigError, TidemillError
from tidemill.flows import compat

#: Module by module, what programs import from it.
NAMES = {
    "workflows": "Context Workflow catch_error step",
    "workflows.events": "DictLikeModel Event SerializableEvent UnreconstructedException StartEvent StopEvent "
    "WorkflowTimedOutEvent WorkflowCancelledEvent IdleReleasedEvent WorkflowFailedEvent CollectionReleaseEvent "
    "StepFailedEvent InputRequiredEvent HumanResponseEvent InternalDispatchEvent WorkflowIdleEvent UnhandledEvent "
    "StepStateChanged StepState EventType",
    "workflows.errors": "WorkflowValidationError WorkflowTimeoutError WorkflowRuntimeError WorkflowDone "
    "WorkflowCancelledByUser WorkflowStepDoesNotExistError WorkflowConfigurationError ContextSerdeError "
    "ContextStateError",
    "workflows.decorators": "step catch_error StepConfig CatchErrorHandler StepFunction make_step_function",
    "workflows.collect": "Cardinality All Take Collect",
    "workflows.context": "Context BaseSerializer JsonSerializer PickleSerializer",
    "workflows.context.context": "Context",
    "workflows.context.serializers": "BaseSerializer JsonSerializer PickleSerializer JsonPickleSerializer",
    "workflows.context.state_store": "DictState InMemoryStateStore StateStore UnserializableKeyWarning "
    "MODEL_T MAX_DEPTH KNOWN_UNSERIALIZABLE_KEYS InMemorySerializedState parse_in_memory_state encode_state "
    "decode_state serialize_dict_state_data deserialize_dict_state_data deserialize_state_from_dict "
    "create_in_memory_payload get_by_path set_by_path traverse_path_step assign_path_step merge_state "
    "create_cleared_state infer_state_type",
    "workflows.context.utils": "get_qualified_name import_module_from_qualified_name",
    "workflows.handler": "WorkflowHandler",
    "workflows.workflow": "Workflow WorkflowMeta",
    "workflows.types": "StopEventT RunResultT",
    "workflows.service": "ServiceManager ServiceNotFoundError",
    "workflows.runtime.types.results": "WaitingForEvent",
    "workflows.utils": "StepSignatureSpec inspect_signature get_steps_from_class get_steps_from_instance "
    "is_free_function validate_step_signature BUSY_WAIT_DELAY _get_param_types _get_return_types",
    "workflows.retry_policy": "RetryPolicy RetryInfo retry_policy ConstantDelayRetryPolicy "
    "ExponentialBackoffRetryPolicy wait_fixed wait_full_jitter stop_after_attempt retry_if_exception_type",
    "workflows.resource": "Resource ResourceConfig ResourceDefinition ResourceDescriptor ResourceManager",
    "workflows.testing": "WorkflowTestRunner",
    "workflows.testing.runner": "WorkflowTestRunner WorkflowTestResult",
    "workflows.plugins": "get_current_runtime basic_runtime BasicRuntime",
    "workflows.representation": "WorkflowNodeBase WorkflowStepNode WorkflowEventNode WorkflowExternalNode "
    "WorkflowResourceNode WorkflowResourceConfigNode WorkflowGenericNode WorkflowGraphNode WorkflowGraphEdge "
    "WorkflowGraph get_workflow_representation",
}


@pytest.fixture
def _installed() -> Iterator[None]:
    ours = ("workflows", "llama_agents")
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in ours}
    compat.install()
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        del sys.modules[name]
    sys.modules.update(before)


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("module", NAMES)
def test_every_public_name_is_there(module: str) -> None:
    found = importlib.import_module(module)
    for name in NAMES[module].split():
        assert hasattr(found, name), name


@pytest.mark.usefixtures("_installed")
def test_submodules_are_attributes_of_their_parents() -> None:
    workflows = importlib.import_module("workflows")
    assert workflows.context.state_store.DictState
    assert workflows.events.Event
    compat.install()
    assert importlib.import_module("workflows") is workflows


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("module", NAMES)
def test_the_alias_of_the_package_has_the_same_modules(module: str) -> None:
    assert importlib.import_module(f"llama_agents.{module}") is importlib.import_module(module)


@pytest.mark.usefixtures("_installed")
def test_what_is_not_there_cannot_be_imported() -> None:
    with pytest.raises(ImportError):
        importlib.import_module("workflows.server")


@pytest.mark.usefixtures("_installed")
def test_pickles_are_refused_when_they_are_used_and_not_before() -> None:
    serializer = importlib.import_module("workflows.context").PickleSerializer
    with pytest.raises(TidemillError, match="JsonSerializer"):
        serializer()


def test_another_package_of_that_name_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "workflows", sys)
    with pytest.raises(ConfigError):
        compat.install()
