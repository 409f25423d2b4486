"""An agent made with the SDK of A2A 0.3; the first word of a message says what it does, as in support/sdk_agent.py."""

import asyncio
import socket
import sys

import uvicorn
from a2a.server.agent_execution import AgentExecutor
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part, TextPart
from a2a.utils import new_agent_text_message, new_task

BINDING = sys.argv[1]
PREFIX = "/a2a" if BINDING == "JSONRPC" else ""


def say(text):
    return [Part(root=TextPart(text=text))]


class Executor(AgentExecutor):
    """Does what the first word says."""

    async def execute(self, context, event_queue):
        word, _, rest = context.get_user_input().partition(" ")
        if word == "message":
            reply = new_agent_text_message(rest or "hello", context.context_id)
            await event_queue.enqueue_event(reply)
            return
        if context.current_task is None:
            await event_queue.enqueue_event(new_task(context.message))
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        if word == "ask":
            question = updater.new_agent_message(say(rest))
            await updater.requires_input(question, final=True)
        elif word == "silent":
            await asyncio.Event().wait()
        elif word == "chunks":
            total = int(rest)
            for number in range(1, total + 1):
                await updater.add_artifact(
                    say(f"chunk-{number} "),
                    artifact_id="artifact-1",
                    append=number > 1,
                    last_chunk=number == total,
                )
            await updater.complete()
        else:
            await updater.add_artifact(say(context.get_user_input()), artifact_id="artifact-1")
            await updater.complete()

    async def cancel(self, context, event_queue):
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


async def main():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        card = AgentCard(
            name="python-0.3",
            description="An agent of the SDK of A2A 0.3.",
            version="1.0.0",
            url=url + PREFIX,
            preferred_transport=BINDING,
            capabilities=AgentCapabilities(streaming=True),
            default_input_modes=["text/plain"],
            default_output_modes=["text/plain"],
            skills=[AgentSkill(id="echo", name="echo", description="Echoes.", tags=["test"])],
        )
        handler = DefaultRequestHandler(Executor(), InMemoryTaskStore())
        if BINDING == "JSONRPC":
            app = A2AStarletteApplication(card, handler).build(rpc_url=PREFIX)
        else:
            app = A2ARESTFastAPIApplication(card, handler).build()
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        print(f"ready {url}", flush=True)
        await server.serve(sockets=[listener])


asyncio.run(main())
