"""The third version, deployed without thought: it has forgotten what runs and jobs of the first one need."""

from tidemill import App
from tidemill.flows import Event, StartEvent, StopEvent, Workflow, step

app = App("test")


class Weighed(Event):
    grams: int


class Parcel(Workflow):
    @step
    async def pack(self, ev: StartEvent) -> Weighed:
        return Weighed(grams=1)

    @step
    async def label(self, ev: Weighed) -> StopEvent:
        return StopEvent(result="third")


app.workflow(Parcel, timeout=None)


@app.task(queue="mail")
async def send(address: str) -> str:
    return f"third {address}"
