"""The dag: count the shelves side by side, add up what is missing, ask the owner, order.

She has half a minute; after that nothing is ordered. The console makes a form of the schema.
"""

from dataclasses import dataclass

from tidemill.dags import Dag, input_node, node, ref


@dataclass
class Stocktaking:
    """The arguments of a run."""

    shelves: int


ORDER = {
    "type": "object",
    "title": "The order",
    "properties": {
        "ok": {"type": "boolean", "title": "Order it"},
        "supplier": {"enum": ["Miller & Sons", "Harbour Trade", "North Quay"], "title": "From"},
        "remark": {"type": "string", "title": "Remark", "maxLength": 200},
    },
    "required": ["ok", "supplier"],
}

stock = Dag(
    "stock",
    about="Counts what is missing and orders it, if the owner agrees.",
    args=Stocktaking,
    nodes=[
        node("shelves", "list_shelves", args={"count": ref("run.shelves")}),
        node("count", "count_shelf", map=ref("shelves"), args={"shelf": ref("item")}, max_concurrency=3),
        node("missing", "add_up", args={"counted": ref("count")}),
        input_node(
            "agree",
            prompt="Order {{$.missing.things}} things?",
            schema=ORDER,
            timeout="30s",
            default={"ok": False, "supplier": "North Quay"},
        ),
        node(
            "order",
            "order_more",
            args={"things": ref("missing.things"), "supplier": ref("agree.supplier")},
            skip_if="!agree.ok",
            deps=["agree"],
        ),
    ],
)
