"""The append: each of its results, and that a refusal leaves no trace."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest

from passerelle.core.batch import (
    ABSENT,
    Again,
    Appended,
    Batch,
    Conflict,
    DueChange,
    DueClaim,
    Early,
    Fence,
    Fenced,
    IdempotencyRow,
    Incarnation,
    Late,
    OpenChange,
    RunMove,
    StaleEpoch,
    Stamp,
    Unclaimed,
)
from passerelle.core.errors import TooLarge
from passerelle.core.events import EncodedEvent
from passerelle.core.ports.leases import LeaseLost, LeaseRequest
from passerelle.store.store import Store
from tests.support.batches import EPOCH, TaskPlace, event, make_place, mint, operation
from tests.support.engine import Server, ask

pytestmark = pytest.mark.anyio


def chain_after(chain: str, *event_ids: str) -> str:
    for event_id in event_ids:
        chain = hashlib.sha1(f"{chain}{event_id}".encode(), usedforsecurity=False).hexdigest()[:8]
    return chain


def dump(server: Server) -> dict[bytes, object]:
    """All stored data in a comparable form."""
    found: dict[bytes, object] = {}
    for url in server.nodes:
        names = cast("list[bytes]", ask(url, "KEYS", "*"))
        found |= {name: ask(url, "DUMP", name.decode()) for name in names if b"probe" not in name}
    return found


@asynccontextmanager
async def nothing_written(server: Server) -> AsyncGenerator[None]:
    before = dump(server)
    yield
    assert dump(server) == before


def batch_of(at: TaskPlace, *, expected: Stamp = ABSENT, op: str = "") -> Batch:
    return Batch(
        at.session, op or operation(), 0, EPOCH, entities=(at.write(expected),), events=(event(),)
    )


async def begin(store: Store, at: TaskPlace) -> Stamp:
    """The first append of a place; returns what it wrote."""
    first = batch_of(at)
    assert isinstance(await store.log.append(first), Appended)
    return Stamp(1, first.op)


async def opens_lease(store: Store, at: TaskPlace) -> None:
    request = LeaseRequest(at.shard, at.driver, opens=True, wants_duty=False)
    lease = await store.leases.extend(request, 60_000)
    assert not isinstance(lease, LeaseLost)


@pytest.mark.requirement("ENV-4", "I3")
async def test_first_append_makes_the_stream_and_its_chain(store: Store) -> None:
    at = make_place()
    one, two = event(), event()
    batch = Batch(at.session, operation(), 0, EPOCH, entities=(at.write(),), events=(one, two))
    result = await store.log.append(batch)
    origin = chain_after("", EPOCH)
    chain = chain_after(origin, one.event_id, two.event_id)
    assert isinstance(result, Appended)
    assert (result.first, result.last, result.chain) == (1, 2, chain)
    head, page = await store.log.read_resume(at.stream, 0)
    assert head is not None
    assert (head.epoch, head.sequence, head.chain, head.first) == (EPOCH, 2, chain, 1)
    assert [(entry.sequence, entry.event_id, entry.previous) for entry in page] == [
        (1, one.event_id, origin),
        (2, two.event_id, chain_after(origin, one.event_id)),
    ]


async def test_stored_envelope_begins_with_its_sequence_and_the_frame_is_cut_out_of_it(
    store: Store,
) -> None:
    at = make_place()
    shown, hidden = event(facade=at.task), event()
    await store.log.append(
        Batch(at.session, operation(), 0, EPOCH, entities=(at.write(),), events=(hidden, shown))
    )
    first, second = await store.log.read_page(at.stream, 0)
    assert first.data == b'{"sequence":1,' + hidden.body
    assert (first.frame, first.facade) == (None, None)
    assert second.data == b'{"sequence":2,' + shown.body
    assert second.facade == at.task
    assert second.frame is not None
    offset, length = second.frame
    assert second.data[offset : offset + length] == b'{"statusUpdate":{}}'


async def test_snapshot_gets_the_sequences_assigned_by_the_script(store: Store) -> None:
    at = make_place()
    stamp = await begin(store, at)
    pieces = (b'{"last":', 1, b',"first":', 0, b"}")
    await store.log.append(
        Batch(
            at.session,
            operation(),
            0,
            EPOCH,
            entities=(at.write(stamp, pieces),),
            events=(event(), event()),
        )
    )
    (task,) = await store.log.load([at.task_ref])
    assert task.snapshot == b'{"last":3,"first":2}'
    assert task.stamp.version == 2


async def test_fields_are_set_and_removed_with_the_snapshot(store: Store) -> None:
    at = make_place()
    first = Batch(
        at.session,
        "op_a",
        0,
        EPOCH,
        entities=(at.write(fields={"own": b"in_1.1", "c": b"\x00raw"}),),
        events=(event(),),
    )
    await store.log.append(first)
    (task,) = await store.log.load([at.task_ref])
    assert task.fields == {"own": b"in_1.1", "c": b"\x00raw"}
    await store.log.append(
        Batch(
            at.session,
            "op_b",
            0,
            EPOCH,
            entities=(at.write(task.stamp, (), {"own": None}),),
            events=(event(),),
        )
    )
    (task,) = await store.log.load([at.task_ref])
    assert (task.fields, task.snapshot, task.stamp) == ({"c": b"\x00raw"}, b"{}", Stamp(2, "op_b"))


@pytest.mark.requirement("ENV-2", "I2")
async def test_same_operation_twice_stores_one_event(store: Store, server: Server) -> None:
    at = make_place()
    batch = batch_of(at)
    assert isinstance(await store.log.append(batch), Appended)
    async with nothing_written(server):
        assert await store.log.append(batch) == Again(None)
    assert len(await store.log.read_page(at.stream, 0)) == 1


@pytest.mark.requirement("ENV-2")
async def test_repeated_key_gets_the_stored_result(store: Store, server: Server) -> None:
    at = make_place()
    row = IdempotencyRow("key1", "digest", b'{"task":1}\nmore', 60_000)
    first = Batch(at.session, operation(), 0, EPOCH, events=(event(),), idem=row)
    assert isinstance(await store.log.append(first), Appended)
    async with nothing_written(server):
        again = await store.log.append(
            Batch(at.session, operation(), 0, EPOCH, events=(event(),), idem=row)
        )
    assert again == Again(b'{"task":1}\nmore')
    assert await store.log.read_idempotency(at.shard, "key1") == ("digest", b'{"task":1}\nmore')
    assert await store.log.read_idempotency(at.shard, "key2") is None


async def test_key_with_another_request_is_a_conflict(store: Store, server: Server) -> None:
    at = make_place()
    first = IdempotencyRow("key1", "one", b"{}", 60_000)
    await store.log.append(Batch(at.session, operation(), 0, EPOCH, events=(event(),), idem=first))
    second = IdempotencyRow("key1", "two", b"{}", 60_000)
    async with nothing_written(server):
        result = await store.log.append(
            Batch(at.session, operation(), 0, EPOCH, events=(event(),), idem=second)
        )
    assert result == Conflict("idempotency", Stamp(0, ""))


@pytest.mark.requirement("I2", "CMD-28")
async def test_other_version_is_a_conflict_that_names_the_stored_one(
    store: Store, server: Server
) -> None:
    at = make_place()
    stamp = await begin(store, at)
    async with nothing_written(server):
        result = await store.log.append(batch_of(at, expected=ABSENT))
    assert result == Conflict(at.task, stamp)


@pytest.mark.requirement("I2")
async def test_same_version_of_another_operation_is_a_conflict(
    store: Store, server: Server
) -> None:
    at = make_place()
    stamp = await begin(store, at)
    async with nothing_written(server):
        result = await store.log.append(batch_of(at, expected=Stamp(1, "op_of_a_lost_history")))
    assert result == Conflict(at.task, stamp)


@pytest.mark.requirement("I2")
async def test_known_operation_with_another_version_is_a_conflict(
    store: Store, server: Server
) -> None:
    at = make_place()
    stamp = await begin(store, at)
    async with nothing_written(server):
        result = await store.log.append(batch_of(at, expected=Stamp(2, stamp.op)))
    assert result == Conflict(at.task, stamp)


@pytest.mark.requirement("I2", "CMD-28")
async def test_second_of_two_entities_refuses_the_whole_batch(store: Store, server: Server) -> None:
    at = make_place()
    other = TaskPlace(at.shard, at.session, mint("task", at.shard))
    stamp = await begin(store, at)
    batch = Batch(
        at.session,
        operation(),
        0,
        EPOCH,
        entities=(at.write(stamp), other.write(Stamp(4, "x"))),
        events=(event(),),
    )
    async with nothing_written(server):
        assert await store.log.append(batch) == Conflict(other.task, ABSENT)


async def test_entity_without_state_is_compared_and_not_written(store: Store) -> None:
    at = make_place()
    child = TaskPlace(at.shard, at.session, mint("task", at.shard))
    parent = await begin(store, at)

    def child_of(stamp: Stamp) -> Batch:
        entities = (child.write(), at.write(stamp, ()))
        return Batch(at.session, operation(), 0, EPOCH, entities=entities, events=(event(),))

    assert await store.log.append(child_of(Stamp(3, "x"))) == Conflict(at.task, parent)
    assert isinstance(await store.log.append(child_of(parent)), Appended)
    (loaded,) = await store.log.load([at.task_ref])
    assert loaded.stamp == parent


async def test_run_enters_the_set_of_its_driver_and_leaves_it(store: Store) -> None:
    at = make_place()
    await opens_lease(store, at)
    move = RunMove("run_1", at.task, at.driver, enters=True)
    first = Batch(
        at.session,
        "op_a",
        0,
        EPOCH,
        entities=(at.write(fields={"own": str(at.driver).encode()}),),
        events=(event(),),
        runs=(move,),
    )
    assert isinstance(await store.log.append(first), Appended)
    last = Batch(
        at.session,
        "op_b",
        0,
        EPOCH,
        entities=(at.write(Stamp(1, "op_a")),),
        events=(event(),),
        fence=Fence(at.task, at.driver),
        runs=(RunMove("run_1", at.task, at.driver, enters=False),),
    )
    assert isinstance(await store.log.append(last), Appended)
    await store.leases.release(at.shard, at.driver)
    assert (await store.due.claim(at.shard, 10, 1000)).rows == ()


@pytest.mark.parametrize("case", ["no lease", "another incarnation", "gone"])
async def test_run_cannot_enter_a_set_that_is_not_its_drivers(
    store: Store, server: Server, case: str
) -> None:
    at = make_place()
    if case == "another incarnation":
        await opens_lease(store, TaskPlace(at.shard, driver=Incarnation(at.driver.instance, 2)))
    if case == "gone":
        await opens_lease(store, at)
        keeper = Batch(
            at.session,
            operation(),
            0,
            EPOCH,
            entities=(at.write(),),
            runs=(RunMove("run_0", at.task, at.driver, enters=True),),
        )
        await store.log.append(keeper)
        await store.leases.release(at.shard, at.driver)
        await store.leases.take_over(at.shard, at.driver.instance)
    other = TaskPlace(at.shard, at.session, mint("task", at.shard), at.driver)
    batch = Batch(
        at.session,
        operation(),
        0,
        EPOCH,
        entities=(other.write(),),
        events=(event(),),
        runs=(RunMove("run_1", other.task, at.driver, enters=True),),
    )
    async with nothing_written(server):
        assert await store.log.append(batch) == Fenced()


async def test_driver_that_lost_the_task_is_fenced(store: Store, server: Server) -> None:
    at = make_place()
    await store.log.append(
        Batch(at.session, "op_a", 0, EPOCH, entities=(at.write(fields={"own": b"in_new.1"}),))
    )
    batch = Batch(
        at.session,
        operation(),
        0,
        EPOCH,
        entities=(at.write(Stamp(1, "op_a")),),
        fence=Fence(at.task, at.driver),
    )
    async with nothing_written(server):
        assert await store.log.append(batch) == Fenced()


@pytest.mark.requirement("I9")
async def test_row_is_settled_with_the_fact_by_the_holder_of_the_claim_only(
    store: Store, server: Server
) -> None:
    at = make_place()
    member = f"retry:{at.task}"
    await store.log.append(
        Batch(
            at.session,
            "op_a",
            0,
            EPOCH,
            entities=(at.write(),),
            due=(DueChange(member, 1), DueChange(f"expire:{at.task}", None)),
        )
    )
    (row,) = (await store.due.claim(at.shard, 10, 60_000)).rows

    def settle(token: str) -> Batch:
        return Batch(
            at.session,
            operation(),
            0,
            EPOCH,
            entities=(at.write(Stamp(1, "op_a")),),
            claim=DueClaim(row.member, token),
            due=(DueChange(f"timeout:{at.task}", 2),),
        )

    async with nothing_written(server):
        assert await store.log.append(settle("17")) == Unclaimed()
    assert isinstance(await store.log.append(settle(row.token)), Appended)
    left = await store.due.claim(at.shard, 10, 60_000)
    assert [found.member for found in left.rows] == [f"timeout:{at.task}"]


@pytest.mark.requirement("I9")
async def test_of_two_changes_of_one_row_the_later_one_holds(store: Store) -> None:
    at = make_place()
    kept, gone = f"retry:{at.task}", f"expire:{at.task}"
    due = (
        DueChange(kept, None),
        DueChange(gone, 1),
        DueChange(kept, 1),
        DueChange(gone, None),
    )
    await store.log.append(
        Batch(at.session, operation(), 0, EPOCH, entities=(at.write(),), due=due)
    )
    found = await store.due.claim(at.shard, 10, 60_000)
    assert [row.member for row in found.rows] == [kept]


async def test_rows_beyond_the_argument_limit_of_one_command_are_set_and_dropped(
    store: Store,
) -> None:
    at = make_place()
    members = [f"retry:{at.task}{number}" for number in range(4500)]
    one = Batch(
        at.session,
        operation(),
        0,
        EPOCH,
        entities=(at.write(),),
        due=tuple(DueChange(member, 1) for member in members),
    )
    made = await store.log.append(one)
    assert isinstance(made, Appended)
    found = await store.due.claim(at.shard, 5000, 1)
    assert len(found.rows) == len(members)
    dropped = replace(
        one,
        op=operation(),
        entities=(at.write(Stamp(1, one.op)),),
        due=tuple(DueChange(member, None) for member in members),
    )
    assert isinstance(await store.log.append(dropped), Appended)
    assert (await store.due.claim(at.shard, 5000, 60_000)).rows == ()


async def test_time_guard_holds_through_its_own_millisecond_and_no_longer(store: Store) -> None:
    at = make_place()
    stamp = await begin(store, at)
    hit = False
    for _ in range(50):
        guard = await server_now(store, at) + 5
        while True:
            op = operation()
            write = at.write(stamp)
            result = await store.log.append(
                Batch(at.session, op, 0, EPOCH, entities=(write,), not_after_ms=guard)
            )
            if isinstance(result, Late):
                assert result.now_ms > guard
                break
            assert isinstance(result, Appended)
            assert result.now_ms <= guard
            hit = hit or result.now_ms == guard
            stamp = Stamp(stamp.version + 1, op)
        if hit:
            return
    pytest.fail("no append met the guard's own millisecond in 50 rounds")


async def server_now(store: Store, at: TaskPlace) -> int:
    return (await store.due.claim(at.shard, 1, 1)).now_ms


async def test_guard_that_has_passed_writes_nothing(store: Store, server: Server) -> None:
    at = make_place()
    stamp = await begin(store, at)
    now = await server_now(store, at)
    batch = Batch(
        at.session, operation(), 0, EPOCH, entities=(at.write(stamp),), not_after_ms=now - 1
    )
    async with nothing_written(server):
        result = await store.log.append(batch)
    assert isinstance(result, Late)
    assert result.now_ms >= now


async def test_older_shard_epoch_is_refused_and_the_new_one_learned(
    store: Store, server: Server
) -> None:
    at = make_place()
    stamp = await begin(store, at)
    epoch = await store.log.bump_epoch(at.shard, 0)
    async with nothing_written(server):
        assert await store.log.append(batch_of(at, expected=stamp)) == StaleEpoch(epoch)
    assert store.log.shard_epoch(at.shard) == epoch
    retried = Batch(at.session, operation(), epoch, EPOCH, entities=(at.write(stamp),))
    assert isinstance(await store.log.append(retried), Appended)


async def test_own_operation_is_recognized_before_its_own_changes(store: Store) -> None:
    at = make_place()
    await opens_lease(store, at)
    member = f"retry:{at.task}"
    await store.log.append(
        Batch(at.session, "op_a", 0, EPOCH, entities=(at.write(),), due=(DueChange(member, 1),))
    )
    (row,) = (await store.due.claim(at.shard, 10, 60_000)).rows
    batch = Batch(
        at.session,
        "op_b",
        0,
        EPOCH,
        entities=(at.write(Stamp(1, "op_a"), fields={"own": b"somebody.1"}),),
        events=(event(),),
        claim=row,
        not_after_ms=await server_now(store, at) + 60_000,
    )
    assert isinstance(await store.log.append(batch), Appended)
    await store.log.bump_epoch(at.shard, 0)
    assert await store.log.append(batch) == Again(None)


async def test_open_set_and_task_list_follow_the_batch(store: Store) -> None:
    at = make_place()
    await store.log.append(
        Batch(
            at.session,
            "op_a",
            0,
            EPOCH,
            entities=(at.write(),),
            events=(event(), event()),
            open=(OpenChange(at.task, 1), OpenChange("act_1", 0)),
            task_times=((at.task, 1000), (f"{at.task}~2", 3000)),
        )
    )
    assert await store.log.read_open(at.session) == ["act_1", at.task]
    assert await store.log.read_session_tasks(at.session) == [
        (f"{at.task}~2", 3000),
        (at.task, 1000),
    ]
    await store.log.append(
        Batch(
            at.session,
            "op_b",
            0,
            EPOCH,
            entities=(at.write(Stamp(1, "op_a")),),
            open=(OpenChange("act_1", None),),
        )
    )
    assert await store.log.read_open(at.session) == [at.task]


async def test_feed_row_is_written_only_for_events_that_a_projection_needs(store: Store) -> None:
    at = make_place()
    stamp = await begin(store, at)
    op = operation()
    await store.log.append(
        Batch(at.session, op, 0, EPOCH, entities=(at.write(stamp),), events=(event(),), feed=False)
    )
    (row,) = await store.projections.read_feed(at.shard, None)
    assert (row.session, row.first, row.last, row.epoch) == (at.session, 1, 1, 0)
    assert await store.projections.read_feed(at.shard, row.id) == []


async def test_batch_over_its_size_is_refused_before_it_is_sent(store: Store) -> None:
    at = make_place()
    many = tuple(event() for _ in range(65))
    large = EncodedEvent("ev_large", "task.progress", b'"x":"' + b"y" * 262_144 + b'"}')
    for events in (many, (large,)):
        with pytest.raises(TooLarge):
            await store.log.append(
                Batch(at.session, operation(), 0, EPOCH, entities=(at.write(),), events=events)
            )
    assert await store.log.read_head(at.stream) is None


@pytest.mark.requirement("I2")
async def test_batch_that_could_run_twice_is_refused(store: Store) -> None:
    at = make_place()
    with pytest.raises(ValueError, match="apply it twice"):
        await store.log.append(Batch(at.session, operation(), 0, EPOCH, events=(event(),)))


async def test_batch_over_two_shards_is_refused(store: Store) -> None:
    one, two = make_place(), make_place()
    assert one.shard != two.shard
    with pytest.raises(ValueError, match="not in the shard"):
        await store.log.append(
            Batch(one.session, operation(), 0, EPOCH, entities=(two.write(),), events=(event(),))
        )


NOON = "2026-11-23T12:00:00.000Z"
LATER = "2026-11-23T12:00:00.001Z"


async def test_times_of_a_stream_never_decrease(store: Store, server: Server) -> None:
    at = make_place()
    first = replace(batch_of(at), at=LATER)
    assert isinstance(await store.log.append(first), Appended)
    stamp = Stamp(1, first.op)
    async with nothing_written(server):
        earlier = replace(batch_of(at, expected=stamp), at=NOON)
        assert await store.log.append(earlier) == Early(LATER)
    same = replace(batch_of(at, expected=stamp), at=LATER)
    assert isinstance(await store.log.append(same), Appended)
    # The repeated operation reports success, whatever the time.
    assert isinstance(await store.log.append(replace(same, at=NOON)), Again)
    timeless = Batch(at.session, operation(), 0, EPOCH, entities=(at.write(Stamp(2, same.op)),))
    assert isinstance(await store.log.append(timeless), Appended)
