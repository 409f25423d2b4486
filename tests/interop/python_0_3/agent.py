"""An A2A 0.3 SDK agent; the first word of a message selects its behaviour, as in support/sdk_agent.py."""

import asyncio
import socket
import sys

import uvicorn
from a2a.server.agent_execution import AgentExecutor
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, DataPart, Part, TextPart
from a2a.utils import new_agent_text_message, new_task

BINDING = sys.argv[1]
PREFIX = "/a2a" if BINDING == "JSONRPC" else ""


URI = "urn:passerelle:ext:permission:1"
QUESTION = {
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


def say(text):
    return [Part(root=TextPart(text=text))]


def read_answer(message):
    """The option of a typed answer to its request."""
    forms = [part.root.data.get(URI) for part in message.parts if part.root.kind == "data"]
    named = [form["option_id"] for form in forms if form and form["digest"] == QUESTION["digest"]]
    return named[0] if named else None


def wants_approval(task):
    """Whether the task began with a payment: text does not answer its request."""
    first = task.history[0].parts[0].root if task and task.history else None
    return getattr(first, "text", "").startswith("pay")


class Executor(AgentExecutor):
    """Runs the behaviour of the first word."""

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
        elif (option := read_answer(context.message)) is not None:
            await updater.add_artifact(say(f"decided: {option}"), artifact_id="artifact-1")
            await updater.complete()
        elif word == "pay" or wants_approval(context.current_task):
            form = [Part(root=DataPart(data={URI: QUESTION}))]
            await updater.requires_input(updater.new_agent_message(form), final=True)
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
