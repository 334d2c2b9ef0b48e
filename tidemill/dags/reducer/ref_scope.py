"""The scope of a node's refs: the run's arguments, the results of other nodes, and the current item of a map."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tidemill.core.expressions.paths import ABSENT, RefError, kind_of
from tidemill.core.expressions.refs import ITEM, RefResolver
from tidemill.dags.definition.check import INDEX
from tidemill.dags.definition.model import RUN
from tidemill.dags.definition.plan import DagPlan, PlannedNode
from tidemill.dags.reducer.state import UNSET, DagState


class RefScope(Mapping[str, Any]):
    """The names that refs can read in one scope of a run, looked up lazily."""

    def __init__(self, plan: DagPlan, state: DagState, scope: str, **more: Any) -> None:
        self._state = state
        self._scope = scope
        self._enter = plan.scopes[scope].enter
        self._more = more

    def __getitem__(self, name: str) -> Any:
        if name in self._more:
            return self._more[name]
        if name == RUN:
            return self._state.run if self._enter is None else self._state.nodes[self._enter].result
        node = self._state.nodes[self._scope + name]
        return ABSENT if node.result is UNSET else node.result

    def __contains__(self, name: object) -> bool:
        return name in self._more or name == RUN or (isinstance(name, str) and self._scope + name in self._state.nodes)

    def __iter__(self) -> Iterator[str]:
        return iter((RUN, *self._more))

    def __len__(self) -> int:
        return 1 + len(self._more)


def read_skip(step: PlannedNode, ref_scope: RefScope, refs: RefResolver) -> bool:
    """Evaluate the `skip_if` of a node."""
    if step.condition is not None:
        return step.condition.holds(ref_scope)
    if step.spec.skip_if is None:
        return False
    held = refs.resolve(step.spec.skip_if, ref_scope, ("skip_if",))
    if not isinstance(held, bool):
        raise RefError(("skip_if",), f"the condition must be true or false, but is {held!r}")
    return held


def read_object(expression: Any, ref_scope: RefScope, refs: RefResolver) -> dict[str, Any]:
    """Resolve the refs of arguments."""
    found = refs.resolve(expression, ref_scope, ("args",))
    if not isinstance(found, dict):
        raise RefError(("args",), f"arguments must be an object, but this is {kind_of(found)}")
    return found


def read_list(expression: Any, ref_scope: RefScope, refs: RefResolver, most: int) -> list[Any]:
    """Resolve the items of a map; an empty list if they come from a node that was skipped."""
    found = refs.resolve(expression, ref_scope, ("map",))
    if found is None:
        return []
    if not isinstance(found, list | tuple):
        raise RefError(("map",), f"a map needs a list, but this is {kind_of(found)}")
    if len(found) > most:
        raise RefError(("map",), f"the list has {len(found)} items, but a map takes at most {most}; group them")
    return list(found)


def item_scope(plan: DagPlan, state: DagState, step: PlannedNode, index: int, value: Any) -> RefScope:
    """Return the scope of one item of a map."""
    return RefScope(plan, state, step.scope, **{ITEM: value, INDEX: index})
