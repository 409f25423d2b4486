"""``payments`` requests an approval before it acts, with our permission extension.

The first message of a task names the bill; the task then waits with a typed approval request. It pays once,
after a typed decision that matches the current request. Any other message, including a plain-text "yes", gets
the request again.
"""

from __future__ import annotations

from typing import Final, cast

from a2a.helpers import (
    get_data_parts,
    new_data_part,
    new_task_from_user_message,
    new_text_part,
)
from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.wire.canonical import digest
from passerelle.core.wire.json import Json, JsonObject
from passerelle.core.wire.times import format_ms
from passerelle.demo.peers.serving import SampleAgent, open_updater, serve
from passerelle.runtime.common.clock import SystemClock

EXTENSION: Final = "urn:passerelle:ext:permission:1"
VALID_MS: Final = 600_000
ALLOW: Final = "pay"
REJECT: Final = "reject"


class PaymentsAgent(SampleAgent):
    """Keeps the pending request of each task; removes it once it is decided."""

    name = "payments"
    description = "Pays a bill, after asking."
    extension = EXTENSION

    def __init__(self) -> None:
        super().__init__()
        self._questions: dict[str, JsonObject] = {}
        self._clock = SystemClock()

    async def answer(self, context: RequestContext, queue: EventQueue) -> None:
        task = open_updater(context, queue)
        if context.current_task is None and context.message is not None:
            await queue.enqueue_event(new_task_from_user_message(context.message))
            question = compose_question(
                task.task_id, context.get_user_input(), self._clock.now_ms()
            )
            self._questions[task.task_id] = question
            await _ask(task, question, "May I pay this?")
            return
        question = self._questions[task.task_id]
        option = read_option(context, question)
        if option is None:
            await _ask(task, question, "A structured decision is needed.")
            return
        del self._questions[task.task_id]
        await _finish(task, question, option)


def compose_question(task_id: str, bill: str, now_ms: int) -> JsonObject:
    """Returns the approval request for a bill; its digest binds a decision to all other members."""
    question: JsonObject = {
        "action_id": f"pay-{task_id}",
        "rev": 1,
        "kind": "permission",
        "title": "Pay a bill",
        "subject": {"type": "tool_call", "name": "pay", "arguments": {"bill": bill}},
        "options": [
            {"option_id": ALLOW, "name": "Pay", "kind": "allow_once"},
            {"option_id": REJECT, "name": "Do not pay", "kind": "reject_once"},
        ],
        "expires_at": format_ms(now_ms + VALID_MS),
        "risk": "high",
    }
    return {**question, "digest": digest(question)}


def read_option(context: RequestContext, question: JsonObject) -> str | None:
    """Returns the chosen option if a data part matches ``question`` exactly."""
    parts = context.message.parts if context.message else ()
    for data in cast("list[Json]", get_data_parts(parts)):
        answer = object_at(data, EXTENSION) if isinstance(data, dict) else {}
        if all(answer.get(name) == question[name] for name in ("action_id", "rev", "digest")):
            option = text_at(answer, "option_id")
            return option if option in (ALLOW, REJECT) else None
    return None


async def _ask(task: TaskUpdater, question: JsonObject, words: str) -> None:
    parts = [new_text_part(words), new_data_part({EXTENSION: question}, "application/json")]
    await task.requires_input(task.new_agent_message(parts))


async def _finish(task: TaskUpdater, question: JsonObject, option: str) -> None:
    await task.start_work()
    if option == REJECT:
        await task.complete(task.new_agent_message([new_text_part("rejected: nothing was paid")]))
        return
    receipt: JsonObject = {"paid": True, "subject": question["subject"]}
    await task.add_artifact([new_data_part(receipt)], name="receipt", last_chunk=True)
    await task.complete(task.new_agent_message([new_text_part("paid")]))


if __name__ == "__main__":
    serve(PaymentsAgent())
