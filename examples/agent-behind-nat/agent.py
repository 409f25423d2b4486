"""An agent without a port: it dials into the gateway, is served there, and calls another agent over the same link.

``python agent.py`` wants the address of the channel in CHANNEL and the key of the agent in KEY.
"""

import asyncio
import os

from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill
from passerelle_client.agent import CallRefused, ReverseAgent
from starlette.applications import Starlette

NAME = "foreman"


class Foreman(AgentExecutor):
    """Has ``echo`` do the work, and reports what came of it."""

    link: ReverseAgent

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        task = TaskUpdater(event_queue, context.task_id, context.context_id)
        await task.start_work()
        message = {
            "messageId": f"work-{task.task_id}",
            "role": "ROLE_USER",
            "parts": [{"text": context.get_user_input()}],
        }
        try:
            # The key makes it safe to send again after a link that was cut: the work is done once.
            answer = await self.link.call(
                "echo", "SendMessage", {"message": message}, idem=task.task_id
            )
        except CallRefused as refused:
            await task.failed(
                task.new_agent_message([new_text_part(f"echo was not called: {refused.code}")])
            )
            return
        (artifact,) = answer["task"]["artifacts"]
        said = "".join(part["text"] for part in artifact["parts"])
        await task.add_artifact([new_text_part(f"echo says: {said}")], name="report")
        await task.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def make_app(foreman: Foreman) -> Starlette:
    """Card and JSON-RPC, called in process."""
    card = AgentCard(
        name=NAME,
        description="Has others do the work.",
        version="1.0",
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="work", name="work", description="Works.", tags=["sample"])],
    )
    handler = DefaultRequestHandler(foreman, InMemoryTaskStore(), card)
    return Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")])


async def main() -> None:
    foreman = Foreman()
    url, key = os.environ["CHANNEL"], os.environ["KEY"]
    async with ReverseAgent(url, token=key, name=NAME, handler=make_app(foreman)) as link:
        foreman.link = link
        await link.wait_served()
        print("served", flush=True)
        await link.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
