"""A shard loses the tail of its history under a running gateway: no task ends with a hole, and none is forgotten.

The tests remove the tail from a running engine, so no connection breaks and no process is notified: they test the
detection. Agents wait before each chunk, so every test loses the same tail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import shard_of
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED, Status
from passerelle.delegation.runs.dispatch import Dispatch
from passerelle.delegation.verification.walk import verify_store
from passerelle.store import keys
from tests.integration.callers.rig import Instance, Rig
from tests.support.engine import ask
from tests.support.lost_tail import ShardSnapshot, take_snapshot
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ADA = {"name": "ada"}
KEY = "ada-key"
CHUNKS = 12


@asynccontextmanager
async def streaming(one: Instance, text: str, number: int = 0) -> AsyncGenerator[None]:
    """Sends a message and reads its stream during the block; ``number`` makes the message id unique."""
    message = {"messageId": f"m-{number}", "role": "ROLE_USER", "parts": [{"text": text}]}
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendStreamingMessage",
        "params": {"message": message},
    }
    headers = {"Authorization": f"Bearer {KEY}"}

    async def read() -> None:
        async with one.http.stream("POST", "/agents/echo", json=body, headers=headers) as answer:
            await answer.aread()

    reading = asyncio.create_task(read())
    try:
        yield
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


async def find_task(one: Instance) -> EntityRef:
    """Waits for the one task that is driven here."""

    async def look() -> list[str]:
        return one.gateway.parts.dispatch.runs.list_tasks()

    found = await wait_until(look, 10, "a task is driven")
    assert found is not None
    (task_id,) = found
    return EntityRef(EntityKind.TASK, task_id)


async def read_record(one: Instance, task: EntityRef) -> TaskRecord:
    record = (await one.gateway.parts.writes.load_one(task)).record
    assert isinstance(record, TaskRecord)
    return record


async def read_text(one: Instance, task: EntityRef) -> str:
    """Returns the artifact as GetTask returns it."""
    shown = (await one.call(KEY, "GetTask", {"id": task.id})).json()
    artifacts = shown.get("result", {}).get("artifacts", [])
    return "".join(part["text"] for artifact in artifacts for part in artifact["parts"])


async def await_chunk(one: Instance, task: EntityRef, number: int) -> None:
    async def is_stored() -> bool:
        return f"chunk-{number} " in await read_text(one, task)

    await wait_until(is_stored, 10, f"chunk {number} is stored")


async def await_end(one: Instance, task: EntityRef) -> TaskRecord:
    async def ended() -> TaskRecord | None:
        record = await read_record(one, task)
        return record if record.status in ENDED else None

    found = await wait_until(ended, 20, "the task has ended")
    assert found is not None
    return found


async def await_extension(rig: Rig, one: Instance, task: EntityRef) -> None:
    """Waits until the lease of the task's shard is extended once more."""
    name = keys.own(task.shard, one.gateway.duties.keeper.instance)
    before = ask(rig.url, "HGET", name, "until")

    async def extended() -> bool:
        return ask(rig.url, "HGET", name, "until") != before

    await wait_until(extended, 5, "the lease is extended")


async def check_repaired(rig: Rig, *instances: Instance) -> None:
    """Verification finds no damage, and at least one instance counted a lost tail."""
    store = instances[0].gateway.store

    async def is_sound() -> bool:
        return (await verify_store(store, rebuild=True)).ok

    await wait_until(is_sound, 15, "verify finds nothing")
    noticed = [one.gateway.metrics.store.lost_tails.collect() for one in instances]
    assert any(sample.value for [metric] in noticed for sample in metric.samples)


async def list_codes(one: Instance, task: EntityRef) -> list[str]:
    """Returns the codes of the warnings in the session of a task."""
    events = await one.read_session((await read_record(one, task)).session_id)
    return [event["payload"]["code"] for event in events if event["type"] == "runtime.warning"]


def expect_text() -> str:
    return "".join(f"chunk-{number} " for number in range(1, CHUNKS + 1))


async def lose_middle(rig: Rig, one: Instance, task: EntityRef) -> ShardSnapshot:
    """Stores four further chunks, then four that the restore will remove; returns the state between them."""
    rig.peer.release(4)
    await await_chunk(one, task, 5)
    before = take_snapshot(rig.url, task.shard)
    rig.peer.release(4)
    await await_chunk(one, task, 9)
    return before


@pytest.mark.requirement("I5", "I8")
@pytest.mark.parametrize("is_read", [True, False])
@pytest.mark.parametrize("others", [0, 1])
async def test_streamed_task_ends_equal_to_the_agents_after_a_lost_tail(
    rig: Rig, *, is_read: bool, others: int
) -> None:
    one, *more = [await rig.start(clients=[ADA]) for _ in range(1 + others)]
    rig.peer.hold()
    async with AsyncExitStack() as reading:
        await reading.enter_async_context(streaming(one, f"chunks {CHUNKS}"))
        task = await find_task(one)
        rig.peer.release(3)
        await await_chunk(one, task, 1)
        if not is_read:
            await reading.aclose()
        before = await lose_middle(rig, one, task)
        before.restore()
        rig.peer.release_all()
        record = await await_end(one, task)
    assert record.status is Status.COMPLETED
    assert await read_text(one, task) == expect_text()
    assert rig.peer.count("SendStreamingMessage") == 1
    assert "history_lost" in await list_codes(one, task)
    await check_repaired(rig, one, *more)


@pytest.mark.requirement("I5")
@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("has_extension", [True, False])
async def test_task_whose_end_was_in_the_tail_ends_again(
    rig: Rig, others: int, *, has_extension: bool
) -> None:
    one, *more = [await rig.start(clients=[ADA]) for _ in range(1 + others)]
    rig.peer.hold()
    async with streaming(one, f"chunks {CHUNKS}"):
        task = await find_task(one)
        rig.peer.release(7)
        await await_chunk(one, task, 5)
        before = take_snapshot(rig.url, task.shard)
        rig.peer.release_all()
        assert (await await_end(one, task)).status is Status.COMPLETED
    if has_extension:
        await await_extension(rig, one, task)
    before.restore()
    if not has_extension:
        ask(rig.url, "CLIENT", "KILL", "TYPE", "normal")
    assert (await read_record(one, task)).status is Status.RUNNING
    assert (await await_end(one, task)).status is Status.COMPLETED
    assert await read_text(one, task) == expect_text()
    assert rig.peer.count("SendStreamingMessage") == 1
    await check_repaired(rig, one, *more)


@pytest.mark.requirement("I5")
@pytest.mark.parametrize("ended", [True, False])
async def test_task_whose_agent_cannot_report_it_fails_as_lost_without_a_hole(
    rig: Rig, *, ended: bool
) -> None:
    one = await rig.start(clients=[ADA])
    rig.peer.refuses = frozenset({"GetTask"})
    rig.peer.hold()
    async with streaming(one, f"chunks {CHUNKS}"):
        task = await find_task(one)
        rig.peer.release(3)
        before = await lose_middle(rig, one, task)
        if ended:
            rig.peer.release_all()
            assert (await await_end(one, task)).status is Status.COMPLETED
            await await_extension(rig, one, task)
        before.restore()
        rig.peer.release_all()
        record = await await_end(one, task)
    assert record.status is Status.FAILED
    assert record.last_error is not None
    assert record.last_error.code == "history_lost"
    await check_repaired(rig, one)


async def test_only_the_damaged_shard_gets_a_new_epoch(rig: Rig) -> None:
    one = await rig.start(clients=[ADA])
    rig.peer.hold()
    async with streaming(one, f"chunks {CHUNKS}"):
        task = await find_task(one)
        rig.peer.release(3)
        before = await lose_middle(rig, one, task)
        before.restore()
        rig.peer.release_all()
        await await_end(one, task)
    await check_repaired(rig, one)
    log = one.gateway.store.log
    await log.read_epochs()
    assert log.shard_epoch(shard_of(task.id)) > 0
    home = shard_of((await read_record(one, task)).owner)
    assert home == task.shard or log.shard_epoch(home) == 0


@pytest.mark.requirement("I9")
async def test_verify_names_each_damaged_task_without_repair(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await rig.start(clients=[ADA])
    rig.peer.hold()

    async def repair_nothing(*_told: object) -> None:
        """Fails, so the lease's set keeps naming the task that no driver runs."""
        raise StoreUnavailable("test", "no")

    async with streaming(one, f"chunks {CHUNKS}"):
        task = await find_task(one)
        rig.peer.release(3)
        before = await lose_middle(rig, one, task)
        rig.peer.release_all()
        await await_end(one, task)
        await await_extension(rig, one, task)
    with monkeypatch.context() as patch:
        patch.setattr(Dispatch, "reattach", repair_nothing)
        before.restore()

        async def is_named() -> list[str]:
            found = (await verify_store(one.gateway.store)).problems
            return [one.subject for one in found if one.kind == "undriven"]

        assert await wait_until(is_named, 10, "verify names it") == [task.id]
    assert (await await_end(one, task)).status is Status.COMPLETED
    await check_repaired(rig, one)
