"""Text that an agent is streaming: live followers get each chunk, and it is not stored (EVC-6)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from passerelle.core.batch import Incarnation
from passerelle.core.commands import TurnAccepted
from passerelle.core.ports.deltas import TextDelta
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task.status import Status
from tests.support.harness import Harness
from tests.support.scripted_tasks import Turn
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


def join(deltas: Iterable[TextDelta], shown: dict[str, str] | None = None) -> dict[str, str]:
    """The text that a reader shows who applies the documented rule."""
    shown = {} if shown is None else shown
    for delta in deltas:
        if delta.at == 0:
            shown[delta.block] = delta.text
        elif delta.at == len(shown.get(delta.block, "")):
            shown[delta.block] += delta.text
    return shown


class Received(list[TextDelta]):
    """Deltas of a session that one instance has received."""

    async def until(self, block: str, text: str) -> None:
        await wait_until(lambda: join(self).get(block) == text, 15, f"the text {text!r}")


def stream_of(accepted: TurnAccepted) -> StreamRef:
    return StreamRef(StreamKind.SESSION, accepted.session_id)


async def send_chunks(turn: Turn) -> None:
    """Sends four chunks, in two artifacts."""
    await turn.status("WORKING")
    await turn.artifact("one ", artifact_id="poem", last=False)
    await turn.artifact("twö ", artifact_id="poem", append=True, last=False)
    await turn.artifact("aside", artifact_id="note", last=True)
    await turn.artifact("three", artifact_id="poem", append=True, last=True)
    await turn.status("COMPLETED")


async def begin(harness: Harness) -> tuple[TurnAccepted, Received]:
    """A stream that is held before its first frame, and its received deltas."""
    harness.peer.next(send_chunks)
    harness.peer.hold()
    accepted = await harness.send("words", wait="stream")
    received = Received()
    await harness.store.deltas.listen(stream_of(accepted), received.append)
    return accepted, received


@pytest.mark.requirement("EVC-6", "I1")
async def test_chunks_are_received_live_and_only_the_end_is_stored(harness: Harness) -> None:
    accepted, received = await begin(harness)
    poem, note = f"{accepted.facade}/poem", f"{accepted.facade}/note"
    harness.peer.release(3)  # the task, its WORKING status, the first chunk
    await received.until(poem, "one ")
    harness.peer.release(1)
    await received.until(poem, "one twö ")
    harness.peer.release(1)
    await received.until(note, "aside")
    harness.peer.release_all()
    await received.until(poem, "one twö three")
    await harness.until(accepted, Status.COMPLETED)
    assert {delta.facade for delta in received} == {accepted.facade}
    kinds = await harness.types(accepted)
    assert "model.delta" not in kinds
    assert [kinds.count(kind) for kind in ("model.completed", "artifact.changed")] == [1, 2]


async def test_late_reader_gets_the_text_from_its_beginning(harness: Harness) -> None:
    accepted, received = await begin(harness)
    poem = f"{accepted.facade}/poem"
    harness.peer.release(4)
    await received.until(poem, "one twö ")
    shown = join(harness.parts.dispatch.open_text.read_blocks(accepted.session_id))
    assert shown == {poem: "one twö "}
    before = len(received)
    harness.peer.release_all()
    await received.until(poem, "one twö three")
    assert join(received[before:], shown)[poem] == "one twö three"
    await harness.until(accepted, Status.COMPLETED)

    async def is_closed() -> bool:
        return not harness.parts.dispatch.open_text.read_blocks(accepted.session_id)

    await wait_until(is_closed, 15, "the blocks are closed with the run")


async def test_first_listener_gets_the_text_before_it(harness: Harness) -> None:
    harness.peer.next(send_chunks)
    harness.peer.hold()
    accepted = await harness.send("words", wait="stream")
    harness.peer.release(3)

    async def has_begun() -> bool:
        record = await harness.record(accepted)
        return record.progress.counters.get("chunks", 0) == 1

    await wait_until(has_begun, 15, "the first chunk is stored without a listener")
    received = Received()
    await harness.store.deltas.listen(stream_of(accepted), received.append)
    harness.clock.ahead_ms += 2_000
    harness.peer.release(1)
    await received.until(f"{accepted.facade}/poem", "one twö ")
    harness.peer.release_all()
    await harness.until(accepted, Status.COMPLETED)


async def test_text_continues_at_its_offset_on_another_instance(harness: Harness) -> None:
    accepted, received = await begin(harness)
    poem = f"{accepted.facade}/poem"
    harness.peer.release(4)
    await received.until(poem, "one twö ")
    await harness.restart()
    await harness.adopt(accepted)
    harness.peer.release_all()
    await received.until(poem, "one twö three")
    await harness.until(accepted, Status.COMPLETED)


async def test_restarted_text_replaces_the_text_shown(harness: Harness) -> None:
    async def restart_text(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.artifact("a long beginning", artifact_id="poem", last=False)
        await turn.artifact("another", artifact_id="poem", last=True)
        await turn.status("COMPLETED")

    harness.peer.next(restart_text)
    harness.peer.hold()
    accepted = await harness.send("again", wait="stream")
    received = Received()
    await harness.store.deltas.listen(stream_of(accepted), received.append)
    harness.peer.release(3)
    await received.until(f"{accepted.facade}/poem", "a long beginning")
    harness.peer.release_all()
    await received.until(f"{accepted.facade}/poem", "another")
    await harness.until(accepted, Status.COMPLETED)


async def test_instance_that_has_lost_the_run_sends_no_text(harness: Harness) -> None:
    accepted, received = await begin(harness)
    harness.peer.release(3)
    await received.until(f"{accepted.facade}/poem", "one ")
    await harness.replace_driver(accepted, Incarnation("in_other", 1))
    harness.peer.release_all()

    def has_left() -> bool:
        return harness.parts.dispatch.find(accepted.task_id) is None

    await wait_until(has_left, 15, "the instance has noticed the transfer")
    assert harness.parts.dispatch.open_text.read_blocks(accepted.session_id) == []
