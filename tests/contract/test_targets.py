"""Webhook targets: woken by matching events, one delivery in flight, never a skipped event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from passerelle.core.batch import Appended, Batch, TargetChange
from passerelle.core.ports.due import DueRow
from passerelle.store.store import Store
from passerelle.store.targets import Settlement, StuckTarget, Target
from tests.support.batches import EPOCH, TaskPlace, event, make_place, operation

pytestmark = pytest.mark.anyio

UNCLAIMED = Settlement(claimed=False, token=None, confirmed=True)
SETTLED = Settlement(claimed=True, token=None, confirmed=True)
NOWHERE = "00000000.0.00000000"


async def append(
    store: Store, at: TaskPlace, facade: str | None = None, *changes: TargetChange, events: int = 1
) -> Appended:
    """Appends further events, with changes of targets in the same append."""
    (task,) = await store.log.load([at.task_ref])
    batch = Batch(
        at.session,
        operation(),
        0,
        EPOCH,
        entities=(at.write(task.stamp),),
        events=tuple(event(facade=facade) for _ in range(events)),
        targets=changes,
    )
    result = await store.log.append(batch)
    assert isinstance(result, Appended)
    return result


def cursor_of(written: Appended) -> str:
    return f"{EPOCH}.{written.last}.{written.chain}"


async def claim(store: Store, at: TaskPlace) -> list[DueRow]:
    return list((await store.due.claim(at.shard, 10, 60_000)).rows)


async def is_pending(store: Store, at: TaskPlace) -> bool:
    return (await store.due.claim(at.shard, 1, 1)).next_ms is not None


async def hook(store: Store, at: TaskPlace) -> Target:
    found = await store.targets.find(at.stream, "hook")
    assert found is not None
    return found


async def hooked(store: Store, *, chosen: str = "*") -> tuple[TaskPlace, str]:
    """A session with one event and the target ``hook``; the cursor where it starts."""
    at = make_place()
    before = await append(store, at)
    await append(store, at, None, TargetChange("hook", chosen), events=0)
    return at, cursor_of(before)


async def test_target_starts_before_the_events_of_its_own_append(store: Store) -> None:
    at = make_place()
    before = await append(store, at)
    written = await append(store, at, at.task, TargetChange("hook", at.task))
    assert written.woken == 1
    assert await store.targets.read(at.stream) == {
        "hook": Target("live", at.task, cursor_of(before))
    }
    assert [row.member for row in await claim(store, at)] == ["target:hook"]


async def test_target_created_with_its_stream_starts_at_its_beginning(
    store: Store,
) -> None:
    at = make_place()
    written = await append(store, at, at.task, TargetChange("hook", at.task))
    assert written.woken == 1
    (entry,) = await store.log.read_page(at.stream, 0)
    assert (await hook(store, at)).cursor == f"{EPOCH}.0.{entry.previous}"


async def test_only_a_target_whose_filter_matches_is_woken(store: Store) -> None:
    at = make_place()
    changes = [("all", "*"), ("mine", at.task), ("other", "task_other")]
    quiet = await append(store, at, None, *(TargetChange(*change) for change in changes), events=0)
    assert quiet.woken == 0
    written = await append(store, at, at.task)
    assert written.woken == 2
    assert sorted(row.member for row in await claim(store, at)) == ["target:all", "target:mine"]
    assert (await append(store, at, at.task)).woken == 0


async def test_target_for_the_whole_stream_is_due_at_once_with_a_cursor_that_never_holds(
    store: Store,
) -> None:
    at = make_place()
    await append(store, at)
    written = await append(store, at, None, TargetChange("hook", at.task, whole=True), events=0)
    assert written.woken == 1
    assert (await hook(store, at)).cursor == NOWHERE
    assert [row.member for row in await claim(store, at)] == ["target:hook"]


async def test_delivery_up_to_the_head_drops_the_row(store: Store) -> None:
    at, _ = await hooked(store)
    end = cursor_of(await append(store, at))
    (row,) = await claim(store, at)
    done = Target("live", "*", end)
    assert await store.targets.settle(at.stream, "hook", row.token, done, hold_ms=9) == SETTLED
    assert await store.targets.read(at.stream) == {"hook": done}
    assert not await is_pending(store, at)


async def test_append_during_a_delivery_leaves_the_row_due_now(store: Store) -> None:
    at, _ = await hooked(store)
    middle = cursor_of(await append(store, at))
    (row,) = await claim(store, at)
    await append(store, at)
    outcome = Target("live", "*", middle)
    assert await store.targets.settle(at.stream, "hook", row.token, outcome) == SETTLED
    assert [again.member for again in await claim(store, at)] == ["target:hook"]


async def test_row_of_a_lagging_target_can_stay_claimed(store: Store) -> None:
    at, _ = await hooked(store)
    middle = cursor_of(await append(store, at))
    (row,) = await claim(store, at)
    end = cursor_of(await append(store, at))
    going_on = await store.targets.settle(
        at.stream, "hook", row.token, Target("live", "*", middle), hold_ms=70_000
    )
    assert going_on.token is not None
    assert await claim(store, at) == []
    done = Target("live", "*", end)
    assert await store.targets.settle(at.stream, "hook", row.token, done) == UNCLAIMED
    assert await store.targets.settle(at.stream, "hook", going_on.token, done) == SETTLED
    assert not await is_pending(store, at)


async def test_expired_claim_settles_nothing(store: Store) -> None:
    at, start = await hooked(store)
    end = cursor_of(await append(store, at))
    (row,) = await claim(store, at)
    late = str(int(row.token) - 1)
    outcome = Target("live", "*", end)
    assert await store.targets.settle(at.stream, "hook", late, outcome) == UNCLAIMED
    assert (await hook(store, at)).cursor == start


async def test_extended_claim_stays_valid_and_its_old_token_does_not(store: Store) -> None:
    at, _ = await hooked(store)
    end = cursor_of(await append(store, at))
    (row,) = (await store.due.claim(at.shard, 1, 1)).rows
    held = await store.due.extend_claim(at.shard, row, 70_000)
    assert held.row is not None
    assert (held.row.member, held.confirmed) == (row.member, True)
    assert int(held.row.token) > int(row.token)
    assert (await store.due.extend_claim(at.shard, row, 60_000)).row is None
    assert await claim(store, at) == []
    done = Target("live", "*", end)
    assert await store.targets.settle(at.stream, "hook", held.row.token, done) == SETTLED
    assert (await store.due.extend_claim(at.shard, held.row, 60_000)).row is None


async def test_failed_delivery_waits_is_listed_and_succeeds_later(store: Store) -> None:
    at, start = await hooked(store)
    end = cursor_of(await append(store, at))
    (row,) = await claim(store, at)
    failed = Target("backoff", "*", start, 1, 1_700_000_000_000, 0, "http_500")
    settled = await store.targets.settle(at.stream, "hook", row.token, failed, delay_ms=50_000)
    assert settled == SETTLED
    assert await hook(store, at) == failed
    assert await store.targets.list_stuck(10) == [StuckTarget(at.stream, "hook", failed.since_ms)]
    waiting = await store.due.claim(at.shard, 10, 60_000)
    assert waiting.rows == ()
    assert waiting.next_ms is not None
    assert 40_000 < waiting.next_ms - waiting.now_ms <= 50_000
    done = Target("live", "*", end)
    assert await store.targets.settle(at.stream, "hook", f"{waiting.next_ms:.0f}", done) == SETTLED
    assert await store.targets.list_stuck(10) == []


async def given_up(store: Store) -> tuple[TaskPlace, Target]:
    at, start = await hooked(store)
    await append(store, at)
    (row,) = await claim(store, at)
    dead = Target("dead", "*", start, 3, 1_700_000_000_000, 3, "http_404")
    assert await store.targets.settle(at.stream, "hook", row.token, dead) == SETTLED
    return at, dead


async def test_dead_target_keeps_its_cursor_and_is_not_woken(store: Store) -> None:
    at, dead = await given_up(store)
    assert (await append(store, at)).woken == 0
    assert await claim(store, at) == []
    assert await hook(store, at) == dead
    assert [stuck.name for stuck in await store.targets.list_stuck(10)] == ["hook"]


async def test_revived_target_is_due_from_its_cursor_on(store: Store) -> None:
    at, dead = await given_up(store)
    assert await store.targets.revive(at.stream, "hook") == "ok"
    assert await hook(store, at) == Target("live", "*", dead.cursor)
    assert [row.member for row in await claim(store, at)] == ["target:hook"]
    assert await store.targets.list_stuck(10) == []
    assert await store.targets.revive(at.stream, "hook") == "live"
    assert await store.targets.revive(at.stream, "nobody") == "unknown"


async def test_target_that_is_set_again_resumes_from_its_cursor(store: Store) -> None:
    at, dead = await given_up(store)
    written = await append(store, at, None, TargetChange("hook", "*"), events=0)
    assert written.woken == 1
    assert await hook(store, at) == Target("live", "*", dead.cursor)
    assert await store.targets.list_stuck(10) == []


async def test_cursor_of_a_target_never_decreases(store: Store) -> None:
    at, start = await hooked(store)
    end = cursor_of(await append(store, at))
    (row,) = await claim(store, at)
    await store.targets.settle(at.stream, "hook", row.token, Target("live", "*", end))
    await append(store, at)
    (row,) = await claim(store, at)
    behind = Target("live", "*", start)
    assert (await store.targets.settle(at.stream, "hook", row.token, behind)).claimed
    assert (await hook(store, at)).cursor == end


async def test_cursor_of_another_history_is_replaced(store: Store) -> None:
    at = make_place()
    await append(store, at)
    await append(store, at, None, TargetChange("hook", "*", whole=True), events=0)
    end = cursor_of(await append(store, at))
    (row,) = await claim(store, at)
    await store.targets.settle(at.stream, "hook", row.token, Target("live", "*", end))
    assert (await hook(store, at)).cursor == end


async def test_finished_target_leaves_no_rows(store: Store) -> None:
    at, _ = await hooked(store)
    end = cursor_of(await append(store, at))
    (row,) = await claim(store, at)
    await append(store, at)
    done = Target("done", "*", end)
    assert await store.targets.settle(at.stream, "hook", row.token, done) == SETTLED
    assert await store.targets.read(at.stream) == {}
    assert not await is_pending(store, at)


async def test_removed_target_is_gone_with_its_row_and_settles_nothing(store: Store) -> None:
    at, start = await hooked(store)
    await append(store, at)
    (row,) = await claim(store, at)
    failed = Target("backoff", "*", start, 1, 1, 0, "http_500")
    await store.targets.settle(at.stream, "hook", row.token, failed)
    await append(store, at, None, TargetChange("hook", None), events=0)
    assert await store.targets.read(at.stream) == {}
    assert await store.targets.list_stuck(10) == []
    assert not await is_pending(store, at)
    assert await store.targets.settle(at.stream, "hook", row.token, failed) == UNCLAIMED
    await append(store, at, None, TargetChange("hook", None), events=0)


async def test_outcome_of_a_target_that_was_removed_meanwhile_drops_its_row(store: Store) -> None:
    at, start = await hooked(store)
    await append(store, at)
    (row,) = await claim(store, at)
    await append(store, at, None, TargetChange("hook", None), events=0)
    await append(store, at, None, TargetChange("other", "*"), events=0)
    outcome = replace(await other(store, at), cursor=start)
    assert await store.targets.settle(at.stream, "hook", row.token, outcome) == UNCLAIMED
    assert list(await store.targets.read(at.stream)) == ["other"]


async def other(store: Store, at: TaskPlace) -> Target:
    found = await store.targets.find(at.stream, "other")
    assert found is not None
    return found


async def test_stuck_targets_of_all_shards_come_longest_first(store: Store) -> None:
    names: list[tuple[str, int]] = []
    for since_ms in (30, 10, 20):
        at, start = await hooked(store)
        await append(store, at)
        (row,) = await claim(store, at)
        failed = Target("backoff", "*", start, 1, since_ms, 0, "timeout")
        await store.targets.settle(at.stream, "hook", row.token, failed, delay_ms=60_000)
        names.append((at.session, since_ms))
    listed = [(stuck.stream.id, stuck.since_ms) for stuck in await store.targets.list_stuck(2)]
    assert listed == sorted(names, key=lambda one: one[1])[:2]
