"""The application of the `dags` suite: a task that does nothing, and one that goes on with the next of its kind."""

from tidemill import App
from tidemill.dags import Dag, node

app = App("bench")


@app.task
async def noop() -> None: ...


@app.task
async def hop(left: int) -> None:
    """A chain of plain jobs: each enqueues its successor."""
    if left > 1:
        await app.enqueue("hop", left=left - 1)


def wide(nodes: int) -> Dag:
    """One node, all but two after it, one after all of them."""
    middle = [f"n{number}" for number in range(nodes - 2)]
    after_first = [node(name, "noop", deps=["first"]) for name in middle]
    return Dag(f"wide_{nodes}", nodes=[node("first", "noop"), *after_first, node("last", "noop", deps=middle)])


def chain(nodes: int) -> Dag:
    """Every node after the one before it."""
    rest = [node(f"n{number}", "noop", deps=[f"n{number - 1}"]) for number in range(1, nodes)]
    return Dag(f"chain_{nodes}", nodes=[node("n0", "noop"), *rest])
