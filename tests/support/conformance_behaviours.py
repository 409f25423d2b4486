"""How the conformance agent handles a message: the prefix of its ``messageId`` names a behaviour.

The longest prefix wins. Prefixes with ``tck-`` and ``test-`` are those that the official conformance kit expects of
an agent; an unknown one completes, as the kit expects. Those with ``psl-`` belong to this suite: agent behaviour in
the field that a gateway must handle. Some of them are faults that no SDK produces; the text contains a marker word,
which ``tests.support.conformance_wire`` replaces by the fault when the response is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from a2a.server.agent_execution import RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import Part, Task, TaskState, TaskStatus
from a2a.utils.errors import ContentTypeNotSupportedError
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from tests.support.conformance_wire import WireFault

BIG_ARTIFACT_CHARS: Final = 1_000_000
SLOW_S: Final = 0.3
LINGER_S: Final = 4.0
"""How long the kit expects ``test-resubscribe-message-id`` to stay WORKING, in seconds."""


class Gates:
    """Gates at which behaviours wait until a test releases them, by the id of the first message."""

    def __init__(self) -> None:
        self._steps: dict[str, asyncio.Semaphore] = {}

    def find(self, message_id: str) -> asyncio.Semaphore:
        """The gate of a message; a release before the first wait is kept."""
        return self._steps.setdefault(message_id, asyncio.Semaphore(0))

    def release(self, message_id: str, steps: int) -> None:
        """Lets a behaviour take ``steps`` further steps."""
        gate = self.find(message_id)
        for _ in range(steps):
            gate.release()


@dataclass(frozen=True, slots=True)
class Turn:
    """One message to the agent, and the means to answer it."""

    context: RequestContext
    queue: EventQueue
    updater: TaskUpdater
    tasks: InMemoryTaskStore
    gate: asyncio.Semaphore

    async def open(self) -> None:
        """Creates the task unless the message continues one: the SDK requires a Task before any update."""
        if self.context.current_task is None:
            message = self.context.message
            await self.queue.enqueue_event(
                Task(
                    id=self.updater.task_id,
                    context_id=self.updater.context_id,
                    status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED),
                    history=[message] if message else [],
                )
            )

    async def status(self, state: TaskState, text: str | None = None) -> None:
        """Sends a status update, with an agent message if ``text`` is not empty."""
        message = self.updater.new_agent_message([Part(text=text)]) if text else None
        await self.updater.update_status(state, message)

    async def say(self, text: str) -> None:
        """WORKING, with a text."""
        await self.status(TaskState.TASK_STATE_WORKING, text)

    async def complete(self, text: str | None = None) -> None:
        """COMPLETED."""
        await self.status(TaskState.TASK_STATE_COMPLETED, text)

    async def artifact(self, part: Part, *, append: bool = False, last: bool = True) -> None:
        """One chunk of the only artifact."""
        await self.updater.add_artifact(
            [part], artifact_id="artifact-1", name="output", append=append, last_chunk=last
        )


AgentBehaviour: TypeAlias = Callable[[Turn], Awaitable[None]]

TEXT_FILE: Final = Part(
    raw=b"Generated file content", filename="output.txt", media_type="text/plain"
)
LINKED_FILE: Final = Part(
    url="https://example.com/output.txt", filename="output.txt", media_type="text/plain"
)


def make_data(value: dict[str, Any]) -> Part:
    """A data part."""
    return Part(data=ParseDict(value, Value()))


# ------------------------------------------------------------ expected by the kit


async def complete(turn: Turn) -> None:
    """Completes with an agent message."""
    await turn.open()
    await turn.complete("Hello from TCK")


async def ask(turn: Turn) -> None:
    """INPUT_REQUIRED; the follow-up's own id selects how it continues."""
    await turn.open()
    await turn.status(TaskState.TASK_STATE_INPUT_REQUIRED)


async def answer(turn: Turn) -> None:
    """A bare Message without a Task."""
    reply = turn.updater.new_agent_message([Part(text="Direct message response")])
    reply.ClearField("task_id")
    await turn.queue.enqueue_event(reply)


async def reject(turn: Turn) -> None:
    """REJECTED."""
    await turn.open()
    await turn.status(TaskState.TASK_STATE_REJECTED, "rejected")


async def complete_silently(turn: Turn) -> None:
    """COMPLETED without anything else."""
    await turn.open()
    await turn.complete()


async def linger(turn: Turn) -> None:
    """WORKING for some seconds, then COMPLETED."""
    await turn.open()
    await turn.updater.start_work()
    await asyncio.sleep(LINGER_S)
    await turn.complete()


async def stream_chunks(turn: Turn) -> None:
    """One artifact in two chunks."""
    await turn.open()
    await turn.updater.start_work()
    await turn.artifact(Part(text="chunk-1 "), last=False)
    await turn.artifact(Part(text="chunk-2"), append=True)
    await turn.complete()


def give(part: Part) -> AgentBehaviour:
    """One artifact, then COMPLETED."""

    async def run(turn: Turn) -> None:
        await turn.open()
        await turn.artifact(part)
        await turn.complete()

    return run


def stream(part: Part) -> AgentBehaviour:
    """WORKING, one artifact, COMPLETED."""

    async def run(turn: Turn) -> None:
        await turn.open()
        await turn.updater.start_work()
        await turn.artifact(part)
        await turn.complete()

    return run


# ------------------------------------------------------------ agents in the field


async def hold(turn: Turn) -> None:
    """WORKING; after one step an artifact, after the next COMPLETED."""
    await turn.open()
    await turn.updater.start_work()
    await turn.gate.acquire()
    await turn.artifact(Part(text="held"))
    await turn.gate.acquire()
    await turn.complete()


async def slow(turn: Turn) -> None:
    """A pause between WORKING and the remaining frames."""
    await turn.open()
    await turn.updater.start_work()
    await asyncio.sleep(SLOW_S)
    await turn.artifact(Part(text="slow"))
    await turn.complete()


async def silent(turn: Turn) -> None:
    """A Task, and nothing more until it is cancelled or released."""
    await turn.open()
    await turn.gate.acquire()
    await turn.complete()


async def close(turn: Turn) -> None:
    """The executor returns in WORKING: the stream ends, the task does not."""
    await turn.open()
    await turn.updater.start_work()


async def forget(turn: Turn) -> None:
    """The connection is cut, and the agent no longer knows the task."""
    await turn.open()
    await turn.updater.start_work()
    await turn.gate.acquire()
    await turn.tasks.delete(turn.updater.task_id, turn.context.call_context)
    await turn.say(WireFault.DROP)


async def message_after_task(turn: Turn) -> None:
    """A text that belongs to the task, sent in a separate Message."""
    await turn.open()
    await turn.say("a message after the task")
    await turn.complete()


async def fail_with_ids(turn: Turn) -> None:
    """FAILED with a text that names the agent's own ids."""
    await turn.open()
    text = f"Task {turn.updater.task_id} of context {turn.updater.context_id} is broken"
    await turn.status(TaskState.TASK_STATE_FAILED, text)


async def refuse_type(turn: Turn) -> None:
    """Refuses the content type of the message."""
    raise ContentTypeNotSupportedError


async def sign_in(turn: Turn) -> None:
    """AUTH_REQUIRED; the user signs in elsewhere, and the agent continues without a message."""
    await turn.open()
    await turn.status(TaskState.TASK_STATE_AUTH_REQUIRED, "Sign in somewhere else.")
    await turn.gate.acquire()
    await turn.updater.start_work()
    await turn.artifact(Part(text="signed in"))
    await turn.complete()


async def want_consent(turn: Turn) -> None:
    """AUTH_REQUIRED; the follow-up's own id selects how it continues."""
    await turn.open()
    await turn.status(TaskState.TASK_STATE_AUTH_REQUIRED, "Do you agree?")


def inject_fault(fault: WireFault) -> AgentBehaviour:
    """WORKING, a fault on the wire, an artifact, COMPLETED."""

    async def run(turn: Turn) -> None:
        await turn.open()
        await turn.updater.start_work()
        await turn.say(fault)
        await turn.artifact(Part(text="after the fault"))
        await turn.complete()

    return run


BEHAVIOURS: Final[Mapping[str, AgentBehaviour]] = {
    "tck-complete-task": complete,
    "tck-input-required": ask,
    "tck-artifact-text": give(Part(text="Generated text content")),
    "tck-artifact-file": give(TEXT_FILE),
    "tck-artifact-file-url": give(LINKED_FILE),
    "tck-artifact-data": give(make_data({"key": "value", "count": 42})),
    "tck-message-response": answer,
    "tck-reject-task": reject,
    "tck-stream-001": stream(Part(text="Stream hello from TCK")),
    "tck-stream-002": complete_silently,
    "tck-stream-003": stream(Part(text="Stream task lifecycle")),
    "tck-stream-ordering-001": stream(Part(text="Ordered output")),
    "tck-stream-artifact-text": stream(Part(text="Streamed text content")),
    "tck-stream-artifact-file": stream(TEXT_FILE),
    "tck-stream-artifact-chunked": stream_chunks,
    "test-resubscribe-message-id": linger,
    "psl-hold": hold,
    "psl-slow": slow,
    "psl-silent": silent,
    "psl-close": close,
    "psl-forget": forget,
    "psl-fail-with-ids": fail_with_ids,
    "psl-refuse-type": refuse_type,
    "psl-auth": sign_in,
    "psl-consent": want_consent,
    "psl-big-artifact": give(Part(text="x" * BIG_ARTIFACT_CHARS)),
    "psl-big-integer": give(make_data({"count": WireFault.BIG_INTEGER})),
    "psl-later-field": inject_fault(WireFault.LATER_FIELD),
    "psl-drop": inject_fault(WireFault.DROP),
    "psl-twice": inject_fault(WireFault.TWICE),
    "psl-malformed": inject_fault(WireFault.MALFORMED),
    "psl-unknown-state": inject_fault(WireFault.UNKNOWN_STATE),
    "psl-message-after-task": inject_fault(WireFault.BARE_MESSAGE),
}


def find_behaviour(message_id: str) -> AgentBehaviour:
    """The behaviour of the longest matching prefix; ``complete`` if none matches."""
    fitting = [prefix for prefix in BEHAVIOURS if message_id.startswith(prefix)]
    return BEHAVIOURS[max(fitting, key=len)] if fitting else complete
