"""Acknowledging and reconnecting without an open channel, by the service that HTTP and channels share (CMD-25)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from passerelle.channels.cursor_check import end_of
from passerelle.core.commands import TurnAccepted
from passerelle.core.errors import BadCursor, NotFound, StreamGap
from passerelle.core.payloads.channel import Resumption
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.principal import Principal
from passerelle.core.session.device_requests import (
    AckEvents,
    ChannelReconnected,
    EventsAcked,
    GetChannels,
    ReconnectChannel,
)
from passerelle.core.wire.json import JsonObject
from passerelle.protocol.cursor import parse_cursor
from passerelle.runtime.records.recoveries import Recoveries
from tests.support.harness import ADA, BOB, Harness

pytestmark = pytest.mark.anyio


async def ack(
    harness: Harness,
    stream: str,
    cursor: str,
    who: Principal = ADA,
    device: str = "phone",
    tab: str | None = None,
) -> EventsAcked:
    command = AckEvents(stream=stream, device=device, cursor=cursor, tab=tab)
    return cast("EventsAcked", await harness.service.execute(who, command, None))


async def reconnect(
    harness: Harness, stream: str, cursor: str | None = None, who: Principal = ADA, limit: int = 100
) -> ChannelReconnected:
    command = ReconnectChannel(stream=stream, device="phone", cursor=cursor, limit=limit)
    return cast("ChannelReconnected", await harness.service.execute(who, command, None))


async def cursors(harness: Harness, accepted: TurnAccepted) -> list[str]:
    """Returns the cursor after each stored event, from the first on."""
    stream = StreamRef(StreamKind.SESSION, accepted.session_id)
    head = await harness.store.log.read_head(stream)
    assert head is not None
    entries = await harness.entries(accepted.session_id)
    after = [entry.previous for entry in entries[1:]] + [end_of(head).chain]
    return [
        f"{head.epoch}.{entry.sequence}.{chain}"
        for entry, chain in zip(entries, after, strict=True)
    ]


def sequences(events: tuple[JsonObject, ...]) -> list[int]:
    return [cast("int", event["sequence"]) for event in events]


@pytest.mark.requirement("CMD-25", "CHN-3", "CHN-5")
async def test_a_device_resumes_after_its_ack_with_the_snapshot_and_events(
    harness: Harness,
) -> None:
    accepted, _ = await harness.talk("chunks 5")
    stream = f"session:{accepted.session_id}"
    known = await cursors(harness, accepted)
    fresh = await reconnect(harness, stream)
    assert (fresh.mode, fresh.events, fresh.cursor) == ("snap", (), known[-1])
    assert (await ack(harness, stream, known[-4])).cursor == known[-4]
    assert (await ack(harness, stream, known[-6])).cursor == known[-4]
    again = await reconnect(harness, stream)
    assert again.mode == "acked"
    assert sequences(again.events) == [len(known) - 2, len(known) - 1, len(known)]
    assert again.snapshot["asOf"] == again.cursor == known[-1]
    assert (again.recovery, again.more) == ("completed_undelivered", False)
    first = await reconnect(harness, stream, known[0], limit=2)
    assert (first.mode, sequences(first.events), first.more) == ("resumed", [2, 3], True)
    rest = await reconnect(harness, stream, first.cursor)
    assert sequences((*first.events, *rest.events)) == list(range(2, len(known) + 1))
    await ack(harness, stream, known[-1])
    assert (await reconnect(harness, stream)).recovery == "idle"


@pytest.mark.requirement("CMD-25", "CHN-4")
async def test_an_invalid_cursor_is_repaired_by_the_snapshot(harness: Harness) -> None:
    accepted, _ = await harness.talk("echo hello")
    stream = f"session:{accepted.session_id}"
    (*_, last) = await cursors(harness, accepted)
    held = parse_cursor(last)
    for cursor, why in (
        (f"{held.epoch}.{held.sequence}.00000000", "forked"),
        (f"{held.epoch}.{held.sequence + 9}.00000000", "ahead"),
        (f"0000000b.{held.sequence}.{held.chain}", "epoch"),
    ):
        found = await reconnect(harness, stream, cursor)
        assert (found.mode, found.why, found.events) == ("gap", why, ())
        assert found.snapshot["asOf"] == found.cursor == last
        with pytest.raises(StreamGap) as refused:
            await ack(harness, stream, cursor)
        assert (refused.value.details["why"], refused.value.details["top"]) == (why, last)
    with pytest.raises(BadCursor):
        await reconnect(harness, stream, "nonsense")


@pytest.mark.requirement("CMD-25")
@pytest.mark.parametrize("cursor", [None, "0000000a.1.00000000", "nonsense"])
async def test_a_stream_of_another_owner_equals_an_unknown_one(
    harness: Harness, cursor: str | None
) -> None:
    accepted, _ = await harness.talk("echo hello")
    messages: set[str] = set()
    for stream in (f"session:{accepted.session_id}", "session:se_none", f"task:{accepted.facade}"):
        with pytest.raises(NotFound) as refused:
            await reconnect(harness, stream, cursor, who=BOB)
        messages.add(refused.value.message.replace(stream, "S"))
        with pytest.raises(NotFound):
            await ack(harness, stream, cursor or "0000000a.1.00000000", who=BOB)
    assert len(messages) == 1


@pytest.mark.requirement("CHN-12")
async def test_an_open_question_sets_the_recovery_of_a_device(harness: Harness) -> None:
    accepted = await harness.send("ask Which one?")
    await harness.await_answer(accepted)
    stream = f"session:{accepted.session_id}"
    found = await reconnect(harness, stream)
    assert found.recovery == "waiting"
    assert (await reconnect(harness, f"task:{accepted.facade}")).recovery == "waiting"


@pytest.mark.requirement("SNAP-13", "PRS-9")
@pytest.mark.parametrize(
    ("device", "tab"), [("phone", None), ("phone", "1"), ("ada@home #1", None)]
)
async def test_session_channels_show_cursors_remote_ids_and_pending_work(
    harness: Harness, device: str, tab: str | None
) -> None:
    accepted = await harness.send("ask Which one?")
    await harness.await_answer(accepted)
    known = await cursors(harness, accepted)
    await ack(harness, f"session:{accepted.session_id}", known[1], device=device, tab=tab)
    await ack(harness, f"task:{accepted.facade}", known[2], device=device, tab=tab)
    query = GetChannels(session_id=accepted.session_id)
    summary = await harness.service.read(ADA, query)
    devices = {one.get("task"): one for one in cast("list[dict[str, Any]]", summary["devices"])}
    assert devices[None]["device"] == devices[accepted.facade]["device"] == device
    assert devices[None].get("tab") == devices[accepted.facade].get("tab") == tab
    assert (devices[None]["cursor"], devices[None]["acknowledged"]) == (known[1], 2)
    assert devices[accepted.facade]["acknowledged"] == 3
    assert not devices[None]["connected"]
    (peer,) = cast("list[dict[str, Any]]", summary["peers"])
    record = await harness.record(accepted)
    run = record.attempts[-1]
    assert (peer["peer"], peer["runId"], peer["remoteTaskId"]) == (
        "echo",
        run.run_id,
        run.remote_task_id,
    )
    assert peer["remoteTaskId"] in harness.peer.tasks
    (pending,) = cast("list[dict[str, Any]]", summary["pending"])
    assert (pending["actionId"],) == record.open_actions
    assert summary["returning"] == []
    with pytest.raises(NotFound):
        await harness.service.read(BOB, query)


@pytest.mark.requirement("CHN-12", "PO-6")
async def test_missing_stream_is_reported_as_missing_and_not_as_idle(harness: Harness) -> None:
    accepted, _ = await harness.talk("echo hello")
    recoveries = Recoveries(harness.parts.writes, harness.store.projections)

    async def find(who: Principal, stream: str) -> str:
        return await recoveries.find_one(who.key, Resumption(stream, "resumed", 0, 0))

    known = (f"session:{accepted.session_id}", f"task:{accepted.facade}")
    missing = ("session:se_none", "session:nonsense", "task:nonsense", "task:" + "task_" + "0" * 28)
    for stream in known:
        assert await find(ADA, stream) != "archived_or_missing"
        assert await find(BOB, stream) == "archived_or_missing"
    for stream in missing:
        assert await find(ADA, stream) == "archived_or_missing"
    assert await find(ADA, "inbox:self") == "idle"


@pytest.mark.requirement("SNAP-13")
async def test_each_device_is_shown_with_its_own_acknowledgement(harness: Harness) -> None:
    accepted = await harness.send("ask Which one?")
    await harness.await_answer(accepted)
    known, stream = await cursors(harness, accepted), f"session:{accepted.session_id}"
    for device, place in (("phone", 0), ("desk", 2)):
        await ack(harness, stream, known[place], device=device)
    await ack(harness, stream, known[1], device="phone")
    summary = await harness.service.read(ADA, GetChannels(session_id=accepted.session_id))
    devices = cast("list[dict[str, Any]]", summary["devices"])
    assert {one["device"]: (one["acknowledged"], one["cursor"]) for one in devices} == {
        "phone": (2, known[1]),
        "desk": (3, known[2]),
    }
