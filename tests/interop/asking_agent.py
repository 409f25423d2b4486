"""An A2A 1.0 SDK agent that requests approval in the gateway's own form."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Final, cast

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Message,
    Part,
    Task,
    TaskState,
    TaskStatus,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value
from starlette.applications import Starlette

from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.core.wire.json import JsonObject

QUESTION: Final[JsonObject] = {
    "action_id": "pay-1",
    "rev": 1,
    "digest": "sha256:pay-1",
    "kind": "permission",
    "title": "Pay a bill",
    "subject": {"type": "tool_call", "name": "pay", "arguments": {"amount": 42}},
    "options": [
        {"option_id": "pay", "name": "Pay", "kind": "allow_once"},
        {"option_id": "leave", "name": "Do not pay", "kind": "reject_once"},
    ],
}


class AskingExecutor(AgentExecutor):
    """Requests approval until it has a typed answer, and reports which."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task_id, context_id = context.task_id or "", context.context_id or ""
        message = context.message or Message()
        if context.current_task is None:
            status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            made = Task(id=task_id, context_id=context_id, status=status, history=[message])
            await event_queue.enqueue_event(made)
        updater = TaskUpdater(event_queue, task_id, context_id)
        await updater.start_work()
        option = read_answer(message)
        if option:
            await updater.add_artifact([Part(text=f"decided: {option}")], artifact_id="artifact-1")
            await updater.complete()
            return
        form = Part(data=ParseDict({PERMISSION: QUESTION}, Value()))
        await updater.requires_input(updater.new_agent_message([form]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


def read_answer(message: Message) -> str:
    """The option of a typed answer to its request; empty without one."""
    said = cast("JsonObject", MessageToDict(message))
    forms = [object_at(object_at(part, "data"), PERMISSION) for part in objects_at(said, "parts")]
    named = [form for form in forms if form.get("digest") == QUESTION["digest"]]
    return text_at(named[0], "option_id") if named else ""


async def main() -> None:
    """Serves until it is killed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        at = AgentInterface(url=f"{url}/", protocol_binding="JSONRPC", protocol_version="1.0")
        card = AgentCard(
            name="asks",
            description="Asks for leave.",
            version="1.0.0",
            supported_interfaces=[at],
            capabilities=AgentCapabilities(streaming=True),
            default_input_modes=["text/plain"],
            default_output_modes=["text/plain"],
            skills=[AgentSkill(id="pay", name="pay", description="Pays.", tags=["test"])],
        )
        handler = DefaultRequestHandler(AskingExecutor(), InMemoryTaskStore(), card)
        routes = [*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")]
        config = uvicorn.Config(Starlette(routes=routes), log_config=None, access_log=False)
        sys.stdout.write(f"ready {url}\n")
        sys.stdout.flush()
        await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    asyncio.run(main())
