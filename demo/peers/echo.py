"""``echo`` repeats the text that it receives, as a task with one artifact.

A text that begins with ``message:`` gets a bare Message. A text that begins with ``ask:`` gets a plain-text
question; the answer to it is echoed.
"""

from __future__ import annotations

from typing import Final

from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.types import Role

from passerelle.demo.peers.serving import SampleAgent, open_updater, serve

MESSAGE_PREFIX: Final = "message:"
ASK_PREFIX: Final = "ask:"


class EchoAgent(SampleAgent):
    """Responds with a task, a Message or a question, depending on the prefix of the text."""

    name = "echo"
    description = "Repeats the text that it receives."

    async def answer(self, context: RequestContext, queue: EventQueue) -> None:
        text = context.get_user_input()
        if context.current_task is None and text.startswith(MESSAGE_PREFIX):
            reply = text.removeprefix(MESSAGE_PREFIX).strip()
            await queue.enqueue_event(
                new_text_message(reply, context_id=context.context_id, role=Role.ROLE_AGENT)
            )
            return
        task = open_updater(context, queue)
        if context.current_task is None and context.message is not None:
            await queue.enqueue_event(new_task_from_user_message(context.message))
            if text.startswith(ASK_PREFIX):
                question = text.removeprefix(ASK_PREFIX).strip()
                await task.requires_input(task.new_agent_message([new_text_part(question)]))
                return
        await task.add_artifact([new_text_part(text)], name="echo", last_chunk=True)
        await task.complete()


if __name__ == "__main__":
    serve(EchoAgent())
