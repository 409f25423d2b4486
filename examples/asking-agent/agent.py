"""An agent that asks before it acts. It is made with the a2a-sdk, and knows nothing of the gateway.

``python agent.py`` serves it at http://127.0.0.1:9001.
"""

import hashlib
import json

import uvicorn
from a2a.helpers import get_data_parts, new_data_part, new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentExtension, AgentInterface, AgentSkill
from starlette.applications import Starlette

PERMISSION = "urn:passerelle:ext:permission:1"
HOST, PORT = "127.0.0.1", 9001


def make_question(task_id: str, version: str) -> dict:
    """What is asked. The digest is over all the rest, so that an answer can mean nothing else."""
    question = {
        "action_id": f"deploy-{task_id}",
        "rev": 1,
        "kind": "permission",
        "title": f"Deploy {version} to production?",
        "subject": {"type": "tool_call", "name": "deploy", "arguments": {"version": version}},
        "options": [
            {"option_id": "yes", "name": "Deploy", "kind": "allow_once"},
            {"option_id": "no", "name": "Do not deploy", "kind": "reject_once"},
        ],
        "risk": "medium",
    }
    text = json.dumps(question, sort_keys=True, separators=(",", ":"))
    return {**question, "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"}


def read_answer(context: RequestContext, question: dict) -> str | None:
    """The chosen option, if the message answers exactly this question; words never do."""
    for data in get_data_parts(context.message.parts):
        answer = data.get(PERMISSION, {})
        if all(answer.get(name) == question[name] for name in ("action_id", "rev", "digest")):
            return answer.get("option_id")
    return None


class Deployer(AgentExecutor):
    """Asks, waits for the answer in the same task, and then deploys or does not."""

    def __init__(self) -> None:
        self.questions: dict[str, dict] = {}

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = TaskUpdater(event_queue, context.task_id, context.context_id)
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
            self.questions[task.task_id] = make_question(task.task_id, context.get_user_input())
        question = self.questions[task.task_id]
        match read_answer(context, question):
            case "yes":
                version = question["subject"]["arguments"]["version"]
                await task.add_artifact([new_text_part(f"{version} is deployed")], name="result")
                await task.complete(task.new_agent_message([new_text_part("done")]))
            case "no":
                await task.complete(task.new_agent_message([new_text_part("nothing was deployed")]))
            case _:
                parts = [
                    new_text_part("It takes about a minute."),
                    new_data_part({PERMISSION: question}, "application/json"),
                ]
                await task.requires_input(task.new_agent_message(parts))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.questions.pop(context.task_id, None)
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def make_app() -> Starlette:
    """Card and JSON-RPC."""
    card = AgentCard(
        name="deployer",
        description="Deploys a version, after asking.",
        version="1.0",
        supported_interfaces=[
            AgentInterface(
                url=f"http://{HOST}:{PORT}/", protocol_binding="JSONRPC", protocol_version="1.0"
            )
        ],
        capabilities=AgentCapabilities(streaming=True, extensions=[AgentExtension(uri=PERMISSION)]),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[
            AgentSkill(id="deploy", name="deploy", description="Deploys.", tags=["operations"])
        ],
    )
    handler = DefaultRequestHandler(Deployer(), InMemoryTaskStore(), card)
    return Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")])


if __name__ == "__main__":
    uvicorn.run(make_app(), host=HOST, port=PORT)
