"""Agents of LlamaIndex: a FunctionAgent, a ReActAgent, two agents with a handoff, and a tool that asks a person.

The model is a fake, and says so: it answers from the messages that it is given, so that every run is the same.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from llama_index.core.agent.workflow import AgentOutput, AgentWorkflow, FunctionAgent, ReActAgent, ToolCallResult
from llama_index.core.base.llms.types import ChatMessage, MessageRole, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.workflow import Context, HumanResponseEvent, InputRequiredEvent
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.span_handlers import SimpleSpanHandler


def call(name: str, **arguments: Any) -> ChatMessage:
    block = ToolCallBlock(tool_call_id=f"call of {name}", tool_name=name, tool_kwargs=arguments)
    return ChatMessage(role=MessageRole.ASSISTANT, blocks=[block])


def say(text: str) -> ChatMessage:
    return ChatMessage(role=MessageRole.ASSISTANT, content=text)


def fake_answer(messages: Sequence[ChatMessage], **_: Any) -> ChatMessage:
    """What the fake model says: it calls a tool for the last question, and then repeats what the tool gave."""
    question = next(m.content or "" for m in reversed(messages) if m.role == MessageRole.USER)
    result = messages[-1].content or ""
    is_react = any("Thought" in (m.content or "") for m in messages if m.role == MessageRole.SYSTEM)
    if is_react:
        if result.startswith("Observation:"):
            return say(f"Thought: I can answer.\nAnswer: (fake model) {result.removeprefix('Observation: ')}")
        return say('Thought: I need a tool.\nAction: multiply\nAction Input: {"a": 6, "b": 7}')
    if messages[-1].role == MessageRole.TOOL and "is now handling" not in result:
        return say(f"(fake model) {result}")
    if "times" in question:
        return call("multiply", a=6, b=7)
    if "delete" in question:
        return call("delete", what="the draft")
    if "count" in question:
        return call("count_up")
    if messages[-1].role != MessageRole.TOOL:
        return call("handoff", to_agent="writer", reason="it writes")
    return say("(fake model) a page about tides")


def model() -> MockFunctionCallingLLM:
    return MockFunctionCallingLLM(response_generator=fake_answer, is_chat_model=True)


def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


async def count_up(ctx: Context) -> str:
    """Count one more."""
    async with ctx.store.edit_state() as state:
        state["state"]["n"] += 1
        return f"counted to {state['state']['n']}"


async def delete(ctx: Context, what: str) -> str:
    """Delete something, if a person agrees."""
    answer = await ctx.wait_for_event(
        HumanResponseEvent, waiter_event=InputRequiredEvent(prefix=f"delete {what}?"), requirements={"user": "editor"}
    )
    return f"{what} deleted" if answer.response == "yes" else f"{what} kept"


async def answer(agent: Any, question: str, **options: Any) -> None:
    run = agent.run(user_msg=question, **options)
    shown = {}
    async for event in run.stream_events():
        shown[type(event).__name__] = True
        if isinstance(event, ToolCallResult):
            print(f"  {event.tool_name}({event.tool_kwargs}) -> {event.tool_output.content}")
        if isinstance(event, InputRequiredEvent):
            print(f"  asked: {event.prefix}")
            run.ctx.send_event(HumanResponseEvent(response="yes", user="editor"))
    output: AgentOutput = await run
    print(f"{question}: {output.response.content} [{output.current_agent_name}]")
    print(f"  {' '.join(shown)}")


async def main() -> None:
    spans = SimpleSpanHandler()
    get_dispatcher().add_span_handler(spans)

    await answer(FunctionAgent(tools=[multiply], llm=model()), "six times seven?")
    await answer(ReActAgent(tools=[multiply], llm=model()), "six times seven?")
    await answer(FunctionAgent(name="cleaner", tools=[delete], llm=model()), "delete the draft")

    editor = FunctionAgent(name="editor", description="edits", llm=model(), can_handoff_to=["writer"])
    writer = FunctionAgent(name="writer", description="writes", llm=model())
    await answer(AgentWorkflow(agents=[editor, writer], root_agent="editor"), "a page, please")

    counter = AgentWorkflow.from_tools_or_functions([count_up], llm=model(), initial_state={"n": 1})
    ctx = Context(counter)
    await answer(counter, "count", ctx=ctx)
    await answer(counter, "count", ctx=ctx)
    kept = Context.from_dict(counter, ctx.to_dict())
    await answer(counter, "count", ctx=kept)

    names = {span.id_.partition("-")[0] for span in spans.completed_spans}
    print("spans:", *sorted(name for name in names if name.startswith(("FunctionAgent.", "AgentWorkflow."))))


if __name__ == "__main__":
    asyncio.run(main())
