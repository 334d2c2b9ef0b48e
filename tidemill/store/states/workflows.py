"""Workflow files that an operator has disabled: none of their triggers starts anything."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.store.database import Database
from tidemill.store.jobs.schedules.schedules import skip_missed_fires
from tidemill.store.states.requests import SET_PAUSED
from tidemill.store.transaction import Transaction

#: Who has disabled which of these workflows. They are rows beside those of pipelines, whose names have no slash.
FIND_DISABLED = """
SELECT pipeline AS task, paused_by FROM tidemill.state_control
WHERE pipeline = ANY ($1::text[]) AND stage = '' AND paused_by IS NOT NULL
"""


def task_name(workflow: str) -> str:
    """The name of the task whose jobs run a workflow."""
    return f"workflow/{workflow}"


async def find_disabled(at: Database | Transaction, workflows: Iterable[str]) -> dict[str, str]:
    """The disabled ones of these workflows, each with the operator who has disabled it."""
    names = {task_name(each): each for each in workflows}
    return {names[row["task"]]: row["paused_by"] for row in await at.fetch(FIND_DISABLED, list(names))}


async def set_disabled(tx: Transaction, workflow: str, *, disabled: bool) -> None:
    """Disable a workflow with its schedules, or enable it; those that are not paused fire again from now on."""
    before = (await find_disabled(tx, [workflow])).get(workflow)
    by = tx.by if disabled else None
    await tx.execute(SET_PAUSED, task_name(workflow), "", by)
    await tx.audit(
        "workflow.disable" if disabled else "workflow.enable",
        workflow,
        before={"disabled_by": before},
        after={"disabled_by": by},
    )
    if not disabled:
        await skip_missed_fires(tx, task_name(workflow))
