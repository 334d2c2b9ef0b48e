"""Durable agents of LlamaIndex with a fake model, on the database of the environment: prints what they answer."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from tidemill import App
from tidemill.flows import compat

compat.install()
sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "workflows"))

import agents  # noqa: E402  # pyright: ignore[reportMissingImports]

#: The package of LlamaIndex: for a type checker its agents are workflows of the other implementation.
kinds: Any = importlib.import_module("llama_index.core.agent.workflow")

app = App("agents", database_url=os.environ["TIDEMILL_DATABASE_URL"])

multiplier = app.workflow(kinds.FunctionAgent(tools=[agents.multiply], llm=agents.model()), name="multiplier")
reasoner = app.workflow(kinds.ReActAgent(tools=[agents.multiply], llm=agents.model()))
cleaner = app.workflow(kinds.FunctionAgent(name="cleaner", tools=[agents.delete], llm=agents.model()), name="cleaner")
counter = app.workflow(
    kinds.AgentWorkflow.from_tools_or_functions([agents.count_up], llm=agents.model(), initial_state={"n": 1})
)


async def answered(run: Any) -> None:
    """Print the answer of an agent; a person says yes to what it asks, after it has left memory."""
    async for event in run.stream_events():
        if type(event).__name__ == "InputRequiredEvent":
            await asyncio.sleep(1)
            await run.send_event(agents.HumanResponseEvent(response="yes", user="editor"))
    output = await run
    calls = [(type(call).__name__, call.tool_output.content) for call in output.tool_calls]
    print(output.response.content, output.current_agent_name, calls, flush=True)


async def main() -> None:
    async with app.running():
        waiting = await app.start(cleaner, user_msg="delete the draft")
        await answered(await app.start(multiplier, user_msg="six times seven?"))
        await answered(await app.start(reasoner, user_msg="six times seven?"))
        await answered(await app.start("AgentWorkflow", user_msg="count"))
        await answered(waiting)
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
