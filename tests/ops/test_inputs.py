"""Questions of runs that need attention are not offered, and an answer to one says what to do first."""

from __future__ import annotations

import pytest

from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.core.errors import ConflictError
from tidemill.dags import Dag, input_node
from tidemill.ops.admin.overview import get_overview
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import Nothing
from tidemill.ops.runs.inputs import ListInputs, SubmitInput, list_inputs, submit_input
from tidemill.store.database import Database

ASKED = "INSERT INTO tidemill.run_input (run_id, node, prompt) VALUES ($1, 'agree', 'Order it?')"
PARKED = "UPDATE tidemill.run SET state = 'needs_attention', note = 'its code is gone' WHERE id = $1"


async def test_a_run_that_needs_attention_takes_no_answers(app: App, database: Database) -> None:
    app.dag(Dag("order", nodes=[input_node("agree", prompt="Order it?")]))
    run = await app.start("order")
    await database.fetch(ASKED, run.id)
    at = Local(database, Caller("ann", "operator"), app.declarations)
    assert [each.node for each in (await at.do(list_inputs, ListInputs())).items] == ["agree"]
    assert (await at.do(get_overview, Nothing())).counts.inputs_open == 1

    await database.fetch(PARKED, run.id)
    assert (await at.do(list_inputs, ListInputs())).items == []
    assert (await at.do(get_overview, Nothing())).counts.inputs_open == 0
    with pytest.raises(ConflictError, match=f"its code is gone; once that is mended, `tidemill retry r{run.id}`"):
        await at.do(submit_input, SubmitInput(id=run.id, node="agree", value="yes"))
