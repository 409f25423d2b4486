"""The agent of tests/conversations made with the SDK of A2A 0.3: it does what the first message of a task says.

Streaming at /s and not at /n, JSON-RPC below /rpc and HTTP+JSON below /rest.
"""

import asyncio
import json
import socket

import uvicorn
from a2a.server.agent_execution import AgentExecutor
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    DataPart,
    InvalidParamsError,
    Part,
    TaskState,
    TaskStatus,
    TextPart,
)
from a2a.utils import new_task
from a2a.utils.errors import ServerError
from starlette.applications import Starlette
from starlette.routing import Mount

EXTENSION = "urn:example:ext:one"
SECOND, DONE = "and which size?", "done"
REFUSAL, FAULT = "that is no colour", "the tool broke"
STATES = {"INPUT_REQUIRED": TaskState.input_required, "AUTH_REQUIRED": TaskState.auth_required}


def write(part):
    """A part, given as 1.0 has it."""
    metadata = part.get("metadata")
    if "data" in part:
        return Part(root=DataPart(data=part["data"], metadata=metadata))
    return Part(root=TextPart(text=part["text"], metadata=metadata))


class Executor(AgentExecutor):
    """Keeps the orders and the number of answers of each task."""

    def __init__(self):
        self.orders = {}
        self.turns = {}

    async def execute(self, context, event_queue):
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if EXTENSION in context.requested_extensions:
            context.add_activated_extension(EXTENSION)
        if context.current_task is None:
            order = json.loads(context.get_user_input().removeprefix("play "))
            made = new_task(context.message)
            self.orders[made.id], self.turns[made.id] = order, 0
            await event_queue.enqueue_event(made)
            await updater.start_work()
            await self.ask(updater, order["state"], order["parts"])
            return
        order, turn = self.orders[context.task_id], self.turns[context.task_id]
        self.turns[context.task_id] += 1
        step = order["then"][min(turn, len(order["then"]) - 1)]
        if step == "pass":
            return
        if order["resends"]:
            again = context.current_task.model_copy(deep=True)
            if again.status.message:
                again.history = [*(again.history or []), again.status.message]
            again.status = TaskStatus(state=TaskState.working)
            await event_queue.enqueue_event(again)
        if step == "refuse":
            raise ServerError(error=InvalidParamsError(message=REFUSAL))
        if step == "raise":
            raise RuntimeError(FAULT)
        await updater.start_work()
        if step == "ask":
            await self.ask(updater, order["state"], [{"text": SECOND}])
            return
        parts = [Part(root=TextPart(text=DONE)), *context.message.parts]
        await updater.add_artifact(parts, artifact_id="artifact-1")
        await updater.complete()

    async def ask(self, updater, state, parts):
        question = updater.new_agent_message([write(part) for part in parts])
        await updater.update_status(STATES[state], question, final=True)

    async def cancel(self, context, event_queue):
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def make_apps(url, *, streams):
    """The applications of one of the two."""
    able = AgentCapabilities(streaming=streams, extensions=[AgentExtension(uri=EXTENSION)])
    card = AgentCard(
        name="python-0.3",
        description="Asks and is answered.",
        version="1.0.0",
        url=url,
        capabilities=able,
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[],
    )
    handler = DefaultRequestHandler(Executor(), InMemoryTaskStore())
    base = "/s" if streams else "/n"
    rpc = A2AStarletteApplication(card, handler).build(rpc_url="/rpc")
    rest = A2ARESTFastAPIApplication(card, handler).build()
    return [Mount(f"{base}/rest", rest), Mount(base, rpc)]


async def main():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        routes = [*make_apps(url, streams=True), *make_apps(url, streams=False)]
        config = uvicorn.Config(Starlette(routes=routes), log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        print(f"ready {url}", flush=True)
        await server.serve(sockets=[listener])


asyncio.run(main())
