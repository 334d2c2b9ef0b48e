"""A dag with a map, a condition and a person in the loop; the dag itself is in nightly.yaml.

python examples/dag.py                   everything in this process, then the end
tidemill up examples/dag.py              # the same as a service; then, in a second terminal:
tidemill dag start nightly --app examples/dag.py --args '{"day": "monday"}'
tidemill dag inputs
tidemill dag submit r1 approve '{"answer": "yes"}'
tidemill run r1
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from tidemill import App
from tidemill.dags import load_dag

app = App("etl")
nightly = app.dag(load_dag(Path(__file__).parent / "nightly.yaml"))


@dataclass
class Nightly:
    """The arguments of a run."""

    day: str


@app.task(name="etl.extract")
async def extract(day: str) -> dict:
    return {"day": day, "rows": 120, "files": [f"{day}-{number}.csv" for number in range(3)]}


@app.task(name="etl.clean")
def clean(file: str, position: int) -> str:
    return f"{position}: {file}"


@app.task(name="etl.load")
async def load(rows: int, files: list[str]) -> dict:
    return {"loaded": rows, "from": files}


@app.task(name="etl.apologise")
async def apologise() -> None:
    print("nothing was loaded: sorry")


async def main() -> None:
    async with app.running():
        for answer in ("yes", "no"):
            run = await app.start(nightly, Nightly(day="monday"))
            while not (asked := await run.inputs()):
                await asyncio.sleep(0.05)
            print(f"{asked[0]['prompt']} {answer}")
            await run.submit("approve", {"answer": answer}, by="ann")
            print(await run)
            print(", ".join(f"{row.node} {row.status}" for row in await run.tree()))
        again = await run.rerun(start="approve", edited={"answer": "yes"})
        print(f"again, with another answer: {await again}")


if __name__ == "__main__":
    asyncio.run(main())
