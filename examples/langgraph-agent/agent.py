"""A graph made with LangGraph that asks before it acts, served as an A2A agent. It knows nothing of the gateway.

``python agent.py`` serves it at http://127.0.0.1:9001.
"""

import uvicorn
from a2a.helpers import (
    get_data_parts,
    new_data_part,
    new_task_from_user_message,
    new_text_part,
)
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, interrupt
from starlette.applications import Starlette

HOST, PORT = "127.0.0.1", 9001


@tool
def restart(service: str) -> str:
    """Restarts a service."""
    return f"{service} is restarted"


class Script(BaseChatModel):
    """Stands for a model, so that nothing is asked of a network: calls the tool once, then repeats its result."""

    @property
    def _llm_type(self) -> str:
        return "script"

    def _generate(self, messages: list[BaseMessage], *_: object, **__: object) -> ChatResult:
        last = messages[-1]
        if isinstance(last, ToolMessage):
            said = AIMessage(str(last.content))
        else:
            call = {"name": "restart", "args": {"service": last.content}, "id": "call-1"}
            said = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=said)])


MODEL = Script()


def think(state: MessagesState) -> dict:
    return {"messages": [MODEL.invoke(state["messages"])]}


def act(state: MessagesState) -> dict:
    """The graph stops at ``interrupt``, and goes on from there with what it is resumed with."""
    (call,) = state["messages"][-1].tool_calls
    answer = interrupt(
        {
            "action_requests": [{"name": call["name"], "args": call["args"]}],
            "review_configs": [
                {"action_name": call["name"], "allowed_decisions": ["approve", "reject"]}
            ],
        }
    )
    (decision,) = answer["decisions"]
    allowed = decision["type"] == "approve"
    text = restart.invoke(call["args"]) if allowed else decision.get("message", "not allowed")
    return {"messages": [ToolMessage(text, tool_call_id=call["id"])]}


def choose(state: MessagesState) -> str:
    return "act" if state["messages"][-1].tool_calls else END


def make_graph() -> CompiledStateGraph:
    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("act", act)
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", choose)
    graph.add_edge("act", "think")
    return graph.compile(checkpointer=InMemorySaver())


def read_resume(context: RequestContext) -> dict | None:
    """The decisions of a message; words are none."""
    for data in get_data_parts(context.message.parts):
        if "decisions" in data.get("resume", {}):
            return data["resume"]
    return None


class Operator(AgentExecutor):
    """One thread of the graph for each task."""

    def __init__(self) -> None:
        self.graph = make_graph()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = TaskUpdater(event_queue, context.task_id, context.context_id)
        thread = {"configurable": {"thread_id": task.task_id}}
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
            await self.graph.ainvoke({"messages": [("user", context.get_user_input())]}, thread)
        elif resume := read_resume(context):
            await self.graph.ainvoke(Command(resume=resume), thread)
        state = await self.graph.aget_state(thread)
        if state.interrupts:
            # As the server of LangGraph shows it: an artifact with the interrupt, and a status without words.
            asked = [new_data_part({"id": one.id, "value": one.value}) for one in state.interrupts]
            await task.add_artifact(asked, name="Interrupt")
            await task.requires_input()
        else:
            await task.add_artifact(
                [new_text_part(state.values["messages"][-1].content)], name="result"
            )
            await task.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def make_app() -> Starlette:
    """Card and JSON-RPC."""
    card = AgentCard(
        name="operator",
        description="Restarts a service, after asking.",
        version="1.0",
        supported_interfaces=[
            AgentInterface(
                url=f"http://{HOST}:{PORT}/", protocol_binding="JSONRPC", protocol_version="1.0"
            )
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[
            AgentSkill(id="restart", name="restart", description="Restarts.", tags=["operations"])
        ],
    )
    handler = DefaultRequestHandler(Operator(), InMemoryTaskStore(), card)
    return Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")])


if __name__ == "__main__":
    uvicorn.run(make_app(), host=HOST, port=PORT)
