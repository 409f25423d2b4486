"""Built-in behaviours of the scripted peer, selected by the first word of a message.

An unknown word echoes the text as the only artifact of a completed task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import orjson

from passerelle.core.wire.json import Json
from tests.support.scripted_tasks import TERMINAL, Turn, TurnScript

BIG_ARTIFACT_CHARS: Final = 1_000_000
BIG_STATUS_CHARS: Final = 5_000_000
BIG_INTEGER: Final = (
    9_007_199_254_740_993  # 2**53 + 1: a reader that parses numbers as floats loses it
)


async def echo(turn: Turn) -> None:
    """Any other word: SUBMITTED, WORKING, one artifact with the text, COMPLETED."""
    await turn.status("WORKING")
    await turn.artifact(turn.text)
    await turn.status("COMPLETED")


async def message(turn: Turn) -> None:
    """A bare Message with the rest of the text."""
    await turn.answer(turn.argument or "hello")


async def ask(turn: Turn) -> None:
    """INPUT_REQUIRED with the rest of the text as the question; any follow-up completes."""
    await turn.status("WORKING")
    await turn.status("INPUT_REQUIRED", turn.argument or "Which one?")


async def ask_data(turn: Turn) -> None:
    """INPUT_REQUIRED with a text and a data part: the rest of the text, read as JSON."""
    data: Json = orjson.loads(turn.argument) if turn.argument else {"options": ["a", "b"]}
    await turn.status("INPUT_REQUIRED", "A question with data.", [{"data": data}])


async def auth(turn: Turn) -> None:
    """AUTH_REQUIRED; any follow-up completes."""
    await turn.status("WORKING")
    await turn.status("AUTH_REQUIRED", turn.argument or "Sign in first.")


async def auth_resume(turn: Turn) -> None:
    """AUTH_REQUIRED, then it continues by itself; hold the peer to choose the moment."""
    await turn.status("AUTH_REQUIRED", "Sign in somewhere else.")
    await turn.status("WORKING")
    await turn.artifact("signed in")
    await turn.status("COMPLETED")


async def chunks(turn: Turn) -> None:
    """``chunks 5``: one artifact in that many appended chunks ``chunk-1 `` …, then COMPLETED."""
    total = int(turn.argument or "3")
    await turn.status("WORKING")
    for number in range(1, total + 1):
        await turn.artifact(f"chunk-{number} ", append=number > 1, last=number == total)
    await turn.status("COMPLETED")


async def drop(turn: Turn) -> None:
    """A Task, WORKING, then the connection is cut; the task stays WORKING."""
    await turn.status("WORKING")
    await turn.drop()


async def drop_first(turn: Turn) -> None:
    """The connection is cut before any byte, but the task is still executed."""
    await turn.drop()
    await echo(turn)


async def close(turn: Turn) -> None:
    """A Task, WORKING, then the stream ends normally; the task stays WORKING."""
    await turn.status("WORKING")


async def refuse(turn: Turn) -> None:
    """A JSON-RPC error whose text contains the peer's task id."""
    await turn.refuse(-32602, "Task scripted-task-secret cannot take that")


async def malformed(turn: Turn) -> None:
    """WORKING, an event that is not JSON, then an artifact and COMPLETED."""
    await turn.status("WORKING")
    await turn.write(b"data: {this is not JSON\n\n")
    await turn.artifact("after the malformed frame")
    await turn.status("COMPLETED")


async def nonsense(turn: Turn) -> None:
    """WORKING, a frame that is JSON-RPC but no StreamResponse, then an artifact and COMPLETED."""
    await turn.status("WORKING")
    await turn.tell({"surprise": {"of": "a kind that nobody knows"}})
    await turn.artifact("after the nonsense")
    await turn.status("COMPLETED")


async def unknown_state(turn: Turn) -> None:
    """A state that A2A does not have, then COMPLETED."""
    await turn.status("TASK_STATE_DREAMING", "in a state of my own")
    await turn.status("COMPLETED")


async def silent(turn: Turn) -> None:
    """A Task, then silence until it is cancelled or the peer stops."""
    await turn.open()
    await asyncio.Event().wait()


async def mute(turn: Turn) -> None:
    """No byte until the peer stops."""
    await asyncio.Event().wait()


async def slow(turn: Turn) -> None:
    """``slow 0.5``: WORKING, that many seconds of silence, COMPLETED."""
    await turn.status("WORKING")
    await asyncio.sleep(float(turn.argument or "0.5"))
    await turn.artifact("slow")
    await turn.status("COMPLETED")


async def forget(turn: Turn) -> None:
    """WORKING, then the connection is cut and the peer no longer knows the task."""
    task = await turn.open()
    await turn.status("WORKING")
    task.forgotten = True
    await turn.drop()


async def big(turn: Turn) -> None:
    """One artifact with a text of 1 MB, then COMPLETED."""
    await turn.artifact("x" * BIG_ARTIFACT_CHARS)
    await turn.status("COMPLETED")


async def big_status(turn: Turn) -> None:
    """A status message of 5 MB, then COMPLETED."""
    await turn.status("WORKING", "s" * BIG_STATUS_CHARS)
    await turn.status("COMPLETED")


async def huge_status(turn: Turn) -> None:
    """A status message of 25 MiB."""
    await turn.status("WORKING", "s" * (25 * 1024 * 1024))


async def big_frames(turn: Turn) -> None:
    """5 MB of status text in five messages, each below the event size limit, then COMPLETED."""
    for _ in range(5):
        await turn.status("WORKING", "s" * (BIG_STATUS_CHARS // 5))
    await turn.status("COMPLETED")


async def numbers(turn: Turn) -> None:
    """An artifact whose data part has an integer above 2**53 and a field unknown to A2A."""
    task = await turn.open()
    task.artifact([{"data": {"count": BIG_INTEGER}, "newInSomeLaterVersion": True}])
    await turn.status("COMPLETED")


async def twice(turn: Turn) -> None:
    """Like echo, with every frame sent twice."""
    (await turn.open()).repeat = 2
    await echo(turn)


async def message_after_task(turn: Turn) -> None:
    """A Task, WORKING, then a bare Message that names the task, then COMPLETED."""
    await turn.status("WORKING")
    await turn.answer("a message after the task")
    await turn.status("COMPLETED")


async def two_artifacts(turn: Turn) -> None:
    """Artifacts ``first`` and ``second``, the first one sent again, then COMPLETED."""
    await turn.artifact("one", artifact_id="first")
    await turn.artifact("two", artifact_id="second")
    await turn.artifact("one", artifact_id="first")
    await turn.status("COMPLETED")


async def go_on(turn: Turn) -> None:
    """A follow-up whose first word is unknown: completes the task with the text in an artifact."""
    await turn.status("WORKING")
    await turn.artifact(f"answer: {turn.text}")
    await turn.status("COMPLETED")


def _end_as(state: str) -> TurnScript:
    if state not in TERMINAL:
        raise ValueError(state)

    async def end(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.status(state, turn.argument or None)

    return end


BEHAVIOURS: Final[Mapping[str, TurnScript]] = {
    "echo": echo,
    "message": message,
    "ask": ask,
    "ask-data": ask_data,
    "auth": auth,
    "auth-resume": auth_resume,
    "chunks": chunks,
    "drop": drop,
    "drop-first": drop_first,
    "close": close,
    "refuse": refuse,
    "malformed": malformed,
    "nonsense": nonsense,
    "unknown-state": unknown_state,
    "silent": silent,
    "mute": mute,
    "slow": slow,
    "forget": forget,
    "big": big,
    "big-status": big_status,
    "big-frames": big_frames,
    "huge-status": huge_status,
    "numbers": numbers,
    "twice": twice,
    "message-after-task": message_after_task,
    "two-artifacts": two_artifacts,
    "done": _end_as("COMPLETED"),
    "fail": _end_as("FAILED"),
    "reject": _end_as("REJECTED"),
    "canceled": _end_as("CANCELED"),
}
