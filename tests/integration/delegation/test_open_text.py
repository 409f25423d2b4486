"""Text of an agent on its way: heard as it comes by whoever follows live, and stored nowhere (EVC-6)."""

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
    """What a reader shows who goes by the one rule."""
    shown = {} if shown is None else shown
    for delta in deltas:
        if delta.at == 0:
            shown[delta.block] = delta.text
        elif delta.at == len(shown.get(delta.block, "")):
            shown[delta.block] += delta.text
    return shown


class Heard(list[TextDelta]):
    """What one instance hears of a session."""

    async def until(self, block: str, text: str) -> None:
        await wait_until(lambda: join(self).get(block) == text, 15, f"the text {text!r}")


def stream_of(accepted: TurnAccepted) -> StreamRef:
    return StreamRef(StreamKind.SESSION, accepted.session_id)


async def words(turn: Turn) -> None:
    """Four words, in two artifacts."""
    await turn.status("WORKING")
    await turn.artifact("one ", artifact_id="poem", last=False)
    await turn.artifact("twö ", artifact_id="poem", append=True, last=False)
    await turn.artifact("aside", artifact_id="note", last=True)
    await turn.artifact("three", artifact_id="poem", append=True, last=True)
    await turn.status("COMPLETED")


async def begin(harness: Harness) -> tuple[TurnAccepted, Heard]:
    """A stream that stands before its first frame, and a listener on it."""
    harness.peer.next(words)
    harness.peer.hold()
    accepted = await harness.send("words", wait="stream")
    heard = Heard()
    await harness.store.deltas.listen(stream_of(accepted), heard.append)
    return accepted, heard


@pytest.mark.requirement("EVC-6", "I1")
async def test_chunks_are_heard_as_they_come_and_only_the_end_is_kept(harness: Harness) -> None:
    accepted, heard = await begin(harness)
    poem, note = f"{accepted.facade}/poem", f"{accepted.facade}/note"
    harness.peer.release(3)  # the task, that it works, the first word
    await heard.until(poem, "one ")
    harness.peer.release(1)
    await heard.until(poem, "one twö ")
    harness.peer.release(1)
    await heard.until(note, "aside")
    harness.peer.release_all()
    await heard.until(poem, "one twö three")
    await harness.until(accepted, Status.COMPLETED)
    assert {delta.facade for delta in heard} == {accepted.facade}
    kinds = await harness.types(accepted)
    assert "model.delta" not in kinds
    assert [kinds.count(kind) for kind in ("model.completed", "artifact.changed")] == [1, 2]


async def test_who_comes_late_has_the_text_from_its_beginning(harness: Harness) -> None:
    accepted, heard = await begin(harness)
    poem = f"{accepted.facade}/poem"
    harness.peer.release(4)
    await heard.until(poem, "one twö ")
    shown = join(harness.parts.dispatch.open_text.read_blocks(accepted.session_id))
    assert shown == {poem: "one twö "}
    before = len(heard)
    harness.peer.release_all()
    await heard.until(poem, "one twö three")
    assert join(heard[before:], shown)[poem] == "one twö three"
    await harness.until(accepted, Status.COMPLETED)

    async def is_closed() -> bool:
        return not harness.parts.dispatch.open_text.read_blocks(accepted.session_id)

    await wait_until(is_closed, 15, "the blocks are closed with the run")


async def test_the_first_listener_gets_what_nobody_heard(harness: Harness) -> None:
    harness.peer.next(words)
    harness.peer.hold()
    accepted = await harness.send("words", wait="stream")
    harness.peer.release(3)

    async def has_begun() -> bool:
        record = await harness.record(accepted)
        return record.progress.counters.get("chunks", 0) == 1

    await wait_until(has_begun, 15, "the first word is stored, and nobody heard it")
    heard = Heard()
    await harness.store.deltas.listen(stream_of(accepted), heard.append)
    harness.clock.ahead_ms += 2_000
    harness.peer.release(1)
    await heard.until(f"{accepted.facade}/poem", "one twö ")
    harness.peer.release_all()
    await harness.until(accepted, Status.COMPLETED)


async def test_text_that_goes_on_at_another_instance_goes_on_where_it_was(harness: Harness) -> None:
    accepted, heard = await begin(harness)
    poem = f"{accepted.facade}/poem"
    harness.peer.release(4)
    await heard.until(poem, "one twö ")
    await harness.restart()
    await harness.adopt(accepted)
    harness.peer.release_all()
    await heard.until(poem, "one twö three")
    await harness.until(accepted, Status.COMPLETED)


async def test_text_that_is_begun_anew_takes_the_place_of_what_was_shown(harness: Harness) -> None:
    async def again(turn: Turn) -> None:
        await turn.status("WORKING")
        await turn.artifact("a long beginning", artifact_id="poem", last=False)
        await turn.artifact("another", artifact_id="poem", last=True)
        await turn.status("COMPLETED")

    harness.peer.next(again)
    harness.peer.hold()
    accepted = await harness.send("again", wait="stream")
    heard = Heard()
    await harness.store.deltas.listen(stream_of(accepted), heard.append)
    harness.peer.release(3)
    await heard.until(f"{accepted.facade}/poem", "a long beginning")
    harness.peer.release_all()
    await heard.until(f"{accepted.facade}/poem", "another")
    await harness.until(accepted, Status.COMPLETED)


async def test_an_instance_that_has_lost_the_run_tells_no_text(harness: Harness) -> None:
    accepted, heard = await begin(harness)
    harness.peer.release(3)
    await heard.until(f"{accepted.facade}/poem", "one ")
    await harness.replace_driver(accepted, Incarnation("in_other", 1))
    harness.peer.release_all()

    def has_left() -> bool:
        return harness.parts.dispatch.find(accepted.task_id) is None

    await wait_until(has_left, 15, "the instance has noticed that the run is not its own")
    assert harness.parts.dispatch.open_text.read_blocks(accepted.session_id) == []
