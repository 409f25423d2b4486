"""Runs of an instance that died: each is moved once, resumed, and never left without a driver or a due row."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest

from passerelle.core.batch import EntityRef, Incarnation
from passerelle.core.decision import Held
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ids import Shard
from passerelle.core.payloads.run import RunStatus
from passerelle.core.ports.due import DueRow
from passerelle.core.ports.leases import Alive, LeaseRequest
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task.commands import ObserveStatus
from passerelle.core.task.status import Status
from passerelle.delegation.duties.takeover import TakeOver
from passerelle.runtime.records.writes import Body, WriteRefusal, Writes, Written
from passerelle.store.due import LEASE_BACK_MS
from passerelle.store.store import Store
from tests.integration.duties.conftest import Instance, Instances
from tests.integration.duties.story import Story, make_writes
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SHARD = Shard(11)
DEAD = Incarnation("in_dead", 1)
STATUS = ObserveStatus(Status.RUNNING, RunStatus(native_status="TASK_STATE_WORKING"), "step")


class FailingAfterFirst(Writes):
    """Stores one decision; then the store is unavailable."""

    done: int = 0

    @classmethod
    def over(cls, writes: Writes) -> FailingAfterFirst:
        return cls(writes.log, writes.clock, writes.ids, writes.runtime_id)

    async def decide(
        self,
        session: str,
        refs: Iterable[EntityRef],
        body: Body,
        known: Mapping[EntityRef, Held] | None = None,
    ) -> Written | WriteRefusal:
        self.done += 1
        if self.done > 1:
            raise StoreUnavailable("test", "no")
        return await Writes.decide(self, session, refs, body, known)


def find_taking(instance: Instance) -> TakeOver:
    """The handler of the instance's lease rows."""
    handler = instance.duties.due.handlers["own"]
    taking = handler.__self__  # type: ignore[attr-defined]
    assert isinstance(taking, TakeOver)
    return taking


async def leave_runs(store: Store, count: int) -> list[Story]:
    """Runs of a dead driver whose lease has expired."""
    await store.leases.extend(LeaseRequest(SHARD, DEAD, opens=True, wants_duty=False), 1)
    stories = [Story(make_writes(store), SHARD, DEAD) for _ in range(count)]
    for story in stories:
        await story.begin()
        await story.show()

    async def expired() -> bool:
        # This call marks the set as taken; a takeover finds it all the same.
        return not isinstance(await store.leases.take_over(SHARD, DEAD.instance), Alive)

    await wait_until(expired, 15, "the lease has run out")
    return stories


async def leave_run(store: Store) -> Story:
    """One such run."""
    return (await leave_runs(store, 1))[0]


@pytest.mark.requirement("I6", "I9", "AP-3")
async def test_runs_of_a_killed_instance_resume_once_within_the_lease_and_a_second(
    instances: Instances, store: Store
) -> None:
    one, two = await instances.start("in_one"), await instances.start("in_two")
    stories = [
        Story(make_writes(store), Shard(number % 64), one.duties.keeper.drives(Shard(number % 64)))
        for number in range(0, 200, 3)
    ]
    await asyncio.gather(*(story.begin() for story in stories))
    await one.die()
    died_s = time.monotonic()
    await wait_until(lambda: len(two.adopted) >= len(stories), 6, "every run is driven again")
    assert time.monotonic() - died_s < 6
    assert Counter(two.adopted) == Counter(story.task.id for story in stories)
    assert {await story.read_driver() for story in stories} == {"in_two.1"}
    refused = await stories[0].apply(STATUS, Incarnation("in_one", 1))
    assert stories[0].is_fenced(refused), "the dead instance cannot write any more"


async def test_run_that_was_not_sent_yet_is_taken_over_unchanged(
    instances: Instances, store: Store
) -> None:
    one, two = await instances.start("in_one"), await instances.start("in_two")
    story = Story(make_writes(store), SHARD, one.duties.keeper.drives(SHARD))
    await story.begin()
    await one.duties.stop()
    await wait_until(lambda: two.adopted, 15, "the run was taken up")
    run = (await story.read()).run
    assert run is not None
    assert (run.remote_task_id, run.delivery_mechanism) == (None, "streaming")
    page = await store.log.read_page(StreamRef(StreamKind.SESSION, story.session.id), 0)
    assert page[-1].type == "run.status", "the takeover is a fact all the same"


async def test_takeover_is_recorded_as_a_fact_and_leaves_no_row(
    instances: Instances, store: Store
) -> None:
    story = await leave_run(store)
    one = await instances.start("in_one")
    await wait_until(lambda: one.adopted, 15, "the run was taken up")
    assert one.adopted == [story.task.id]
    page = await store.log.read_page(StreamRef(StreamKind.SESSION, story.session.id), 0)
    assert page[-1].type == "run.status"
    assert b'"deliveryMechanism":"subscription"' in page[-1].data
    run = (await story.read()).run
    assert run is not None
    assert run.native_status == "TASK_STATE_WORKING", "the agent's status is kept"

    async def is_clean() -> bool:
        rows = await store.due.claim(SHARD, 10, 1, skip_prefix="own:in_one")
        return not rows.rows and (await store.leases.take_over(SHARD, "in_dead")) != Alive()

    await wait_until(is_clean, 15, "no row is due any more")


async def test_takeover_that_failed_half_way_is_finished_by_the_next_attempt(
    instances: Instances, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories = await leave_runs(store, 3)
    one = await instances.start("in_one", runs=False)
    await one.duties.keeper.start()
    taking, row = find_taking(one), DueRow("own:in_dead", "1")
    with monkeypatch.context() as patch:
        patch.setattr(taking, "writes", FailingAfterFirst.over(one.writes))
        with pytest.raises(StoreUnavailable):
            await taking.take_over(SHARD, row, 1)
    drivers = Counter([await story.read_driver() for story in stories])
    assert drivers == {"in_one.1": 1, "in_dead.1": 2}
    await taking.take_over(SHARD, row, 1)
    assert {await story.read_driver() for story in stories} == {"in_one.1"}
    assert Counter(one.adopted) == Counter(story.task.id for story in stories)
    await one.duties.keeper.release()
    two = await instances.start("in_two", runs=False)
    await two.duties.keeper.start()
    async with two.duties:
        await wait_until(lambda: len(two.adopted) == 3, 15, "the next owner takes them up")
    assert {await story.read_driver() for story in stories} == {"in_two.1"}


async def test_runs_resume_before_the_dead_instances_set_is_cleared_and_delay_no_other(
    instances: Instances, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stories = await leave_runs(store, 3)
    one = await instances.start("in_one", runs=False)
    await one.duties.keeper.start()
    taking, slow, go_on = find_taking(one), stories[0].task, asyncio.Event()
    adopted: list[EntityRef] = []

    async def adopt(task: EntityRef) -> None:
        if task == slow:
            await go_on.wait()
        adopted.append(task)

    monkeypatch.setattr(taking, "adopt", adopt)
    taken = asyncio.create_task(taking.take_over(SHARD, DueRow("own:in_dead", "1"), 1))
    await wait_until(lambda: len(adopted) == 2, 15, "those that can be driven are")
    found = await store.leases.take_over(SHARD, "in_dead")
    assert not isinstance(found, Alive)
    assert (found.number, found.runs) == (1, ()), "the set is there, and nothing is left in it"
    go_on.set()
    await taken
    assert {task.id for task in adopted} == {story.task.id for story in stories}
    left = await store.due.claim(SHARD, 10, 1, skip_prefix="own:")
    assert (left.rows, one.adopted) == ((), []), "no row is due any more"
    await one.duties.stop()


async def test_failed_takeover_is_retried_well_within_its_second(
    instances: Instances, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (story,) = await leave_runs(store, 1)
    one = await instances.start("in_one", runs=False)
    taking, claims = find_taking(one), list[tuple[DueRow, int]]()
    take_over = taking.take_over

    async def fail_once(shard: Shard, row: DueRow, now_ms: int) -> None:
        claims.append((row, now_ms))
        if len(claims) == 1:
            raise StoreUnavailable("test", "no")
        await take_over(shard, row, now_ms)

    monkeypatch.setattr(one.duties.due, "handlers", {**one.duties.due.handlers, "own": fail_once})
    async with one.duties:
        await wait_until(lambda: one.adopted == [story.task.id], 15, "it is driven all the same")
    (first, first_ms), (_, second_ms) = claims
    due_ms = int(first.token)
    assert due_ms - first_ms == LEASE_BACK_MS <= 500, "by the clock of the server"
    assert second_ms >= due_ms


async def test_leftover_entry_of_an_ended_task_is_only_removed(
    instances: Instances, store: Store
) -> None:
    story = await leave_run(store)
    story.driver = None
    await story.fail()
    one = await instances.start("in_one")

    async def is_empty() -> bool:
        found = await store.leases.take_over(SHARD, "in_dead")
        return not isinstance(found, Alive) and not found.runs

    await wait_until(is_empty, 15, "the set is empty")
    assert one.adopted == []
    assert await story.read_driver() == ""


async def test_successor_without_a_stored_lease_does_not_move_the_run(
    instances: Instances, store: Store
) -> None:
    story = await leave_run(store)
    one = await instances.start("in_one", runs=False)
    await one.duties.keeper.start()
    await store.leases.release(SHARD, one.duties.keeper.drives(SHARD))
    with pytest.raises(StoreUnavailable):
        await find_taking(one).take_over(SHARD, DueRow("own:in_dead", "1"), 1)
    assert await story.read_driver() == "in_dead.1"
    found = await store.leases.take_over(SHARD, "in_dead")
    assert not isinstance(found, Alive)
    assert [task for _, task in found.runs] == [story.task.id]
    await one.duties.stop()


async def test_adoption_that_fails_stays_due_until_it_succeeds(
    instances: Instances, store: Store
) -> None:
    story = await leave_run(store)
    instances.refuse_adoption.add("in_one")
    one = await instances.start("in_one", runs=False)
    one.duties.due.visibility_ms = 200
    find_taking(one).try_again_ms = 0
    outcomes: list[tuple[str, str]] = []
    one.duties.due.count = lambda kind, outcome: outcomes.append((kind, outcome))
    async with one.duties:
        await wait_until(lambda: ("adopt", "failed") in outcomes, 15, "it was tried")
        assert await story.read_driver() == "in_one.1"
        instances.refuse_adoption.clear()
        await wait_until(lambda: one.adopted == [story.task.id], 15, "it was tried again")


async def test_frozen_instance_regains_its_runs_as_its_next_incarnation(
    instances: Instances, store: Store
) -> None:
    one = await instances.start("in_one", lease_ms=300, runs=False)
    await one.duties.keeper.start()
    story = Story(make_writes(store), SHARD, one.duties.keeper.drives(SHARD))
    await story.begin()

    async def is_gone() -> bool:
        return not isinstance(await store.leases.take_over(SHARD, "in_one"), Alive)

    await wait_until(is_gone, 15, "another one marked the set, and died")
    one.duties.due.visibility_ms = 200
    async with one.duties:
        await wait_until(lambda: one.adopted, 10, "the run is driven again")
        assert one.lost == [SHARD]
        assert one.adopted == [story.task.id]
        assert await story.read_driver() == "in_one.2"
