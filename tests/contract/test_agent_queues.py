"""The outgoing queue of an agent: callers take turns, priorities apply within a caller, and idle state is removed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from passerelle.core.ids import derive_shard
from passerelle.core.ports.queues import TaskAdded, WaitingTask
from passerelle.store import keys
from passerelle.store.store import Store, StoreSettings
from tests.support.batches import operation
from tests.support.engine import Server, ask

pytestmark = pytest.mark.anyio


async def add(
    store: Store, agent: str, caller: str, number: int, *, priority: int = 0, since_ms: int = 0
) -> TaskAdded:
    task = WaitingTask(f"task_{caller}_{number}", caller, priority, since_ms or number + 1)
    return await store.queues.add(agent, task)


async def take_all(store: Store, agent: str) -> list[str]:
    taken: list[str] = []
    while (task := await store.queues.take(agent)) is not None:
        taken.append(task.removeprefix("task_"))
    return taken


@pytest.mark.requirement("TEV-3")
async def test_position_counts_waiting_tasks_and_a_repeated_add_counts_once(store: Store) -> None:
    agent = operation()
    assert await add(store, agent, "ada", 1) == TaskAdded(is_new=True, position=1)
    assert await add(store, agent, "ada", 2) == TaskAdded(is_new=True, position=2)
    assert await add(store, agent, "ada", 1) == TaskAdded(is_new=False, position=2)
    assert await take_all(store, agent) == ["ada_1", "ada_2"]


async def test_flood_of_one_caller_does_not_starve_another(store: Store) -> None:
    agent = operation()
    for number in range(50):
        await add(store, agent, "flood", number)
    for number in range(3):
        await add(store, agent, "bob", number)
    first = [await store.queues.take(agent) for _ in range(6)]
    assert Counter(str(one).split("_")[1] for one in first) == {"flood": 3, "bob": 3}


async def test_caller_with_one_task_at_a_time_gets_its_share(store: Store) -> None:
    agent, served = operation(), Counter[str]()
    for number in range(100):
        await add(store, agent, "flood", number)
    await add(store, agent, "bob", 0)
    for number in range(1, 61):
        caller = str(await store.queues.take(agent)).split("_")[1]
        served[caller] += 1
        if caller == "bob":
            await add(store, agent, "bob", number)
    assert served == {"flood": 30, "bob": 30}


async def test_late_caller_does_not_catch_up_on_earlier_turns(store: Store) -> None:
    agent = operation()
    for number in range(60):
        await add(store, agent, "early", number)
    for _ in range(40):
        await store.queues.take(agent)
    for number in range(20):
        await add(store, agent, "late", number)
    first = [str(await store.queues.take(agent)).split("_")[1] for _ in range(20)]
    assert Counter(first) == {"early": 10, "late": 10}


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_shares_of_callers_are_equal_to_one_turn(store: Store, size: int) -> None:
    agent, served = operation(), Counter[str]()
    for caller in range(size):
        for number in range(1 + caller % 4, 12):
            await add(store, agent, f"c{caller}", number)
    for _ in range(8 * size):
        served[str(await store.queues.take(agent)).split("_")[1]] += 1
    assert set(served.values()) == {8}


@pytest.mark.requirement("TR-8")
async def test_higher_priority_goes_first_among_the_tasks_of_one_caller(store: Store) -> None:
    agent = operation()
    for number, priority in enumerate((0, -100, 100, 5, 5, 99)):
        await add(store, agent, "ada", number, priority=priority)
    for number in range(6):
        await add(store, agent, "bob", number, priority=-100)
    taken = await take_all(store, agent)
    assert [one for one in taken if one.startswith("ada")] == [
        "ada_2", "ada_5", "ada_3", "ada_4", "ada_0", "ada_1"
    ]  # fmt: skip
    assert [one[:3] for one in taken] == ["ada", "bob"] * 6, "it takes no turn of another caller"


async def test_task_of_another_priority_moves_and_keeps_its_time(store: Store) -> None:
    agent = operation()
    for number in range(3):
        await add(store, agent, "ada", number)
    assert not (await add(store, agent, "ada", 2, priority=1)).is_new
    assert await take_all(store, agent) == ["ada_2", "ada_0", "ada_1"]


async def test_requeued_task_keeps_its_place_by_time(store: Store) -> None:
    agent = operation()
    for number in range(3):
        await add(store, agent, "ada", number)
    assert await store.queues.take(agent) == "task_ada_0"
    await add(store, agent, "ada", 0)
    assert await take_all(store, agent) == ["ada_0", "ada_1", "ada_2"]


async def test_dropped_task_has_no_turn(store: Store) -> None:
    agent = operation()
    for number in range(2):
        await add(store, agent, "ada", number)
    await add(store, agent, "bob", 0)
    assert await store.queues.drop(agent, "task_ada_0")
    assert not await store.queues.drop(agent, "task_ada_0")
    assert await store.queues.drop(agent, "task_bob_0")
    assert await store.queues.count([agent, operation()]) == [1, 0]
    assert await take_all(store, agent) == ["ada_1"]


async def test_transferred_task_waits_among_those_of_its_new_owner(store: Store) -> None:
    agent = operation()
    for caller, number in (("ada", 0), ("cleo", 1), ("ada", 2), ("ada", 3)):
        await add(store, agent, caller, number)
    for number in (0, 2):
        given = WaitingTask(f"task_ada_{number}", "bob", 0, number + 1)
        assert await store.queues.add(agent, given) == TaskAdded(is_new=False, position=4)
    assert await take_all(store, agent) == ["ada_3", "ada_0", "cleo_1", "ada_2"], "its heir waits"


async def test_caller_whose_tasks_are_all_transferred_blocks_no_other(store: Store) -> None:
    agent = operation()
    await add(store, agent, "ada", 0)
    await add(store, agent, "cleo", 1)
    assert not (await store.queues.add(agent, WaitingTask("task_ada_0", "bob", 0, 1))).is_new
    assert await store.queues.count([agent]) == [2]
    assert sorted(await take_all(store, agent)) == ["ada_0", "cleo_1"]


async def test_unused_turn_is_returned(store: Store) -> None:
    agent = operation()
    for number in range(3):
        await add(store, agent, "ada", number)
        await add(store, agent, "bob", number)
    assert await store.queues.take(agent) == "task_ada_0"
    taken = [await store.queues.take(agent, "ada"), await store.queues.take(agent)]
    assert taken == ["task_ada_1", "task_bob_0"]
    assert await take_all(store, agent) == ["ada_2", "bob_1", "bob_2"]


async def test_unused_turn_is_returned_to_a_caller_without_waiting_tasks(store: Store) -> None:
    agent = operation()
    await add(store, agent, "ada", 0)
    for number in range(3):
        await add(store, agent, "bob", number)
    assert await store.queues.take(agent) == "task_ada_0"
    assert await store.queues.take(agent, "ada") == "task_bob_0"
    for number in range(1, 3):
        await add(store, agent, "ada", number)
    assert await take_all(store, agent) == ["ada_1", "ada_2", "bob_1", "bob_2"]


async def test_turn_of_an_unknown_caller_changes_nothing(store: Store) -> None:
    agent = operation()
    assert await store.queues.take(agent, "ada") is None
    await add(store, agent, "bob", 0)
    assert await store.queues.take(agent, "ada") == "task_bob_0"


async def test_turn_without_a_task_is_skipped(engine_server: Server, tmp_path: Path) -> None:
    """The state in a queue in which an older version has moved a task to another caller."""
    agent = operation()
    async with await Store.open(StoreSettings(engine_server.url, tmp_path / "blobs")) as store:
        await add(store, agent, "ada", 0)
        await add(store, agent, "cleo", 1)
        names = keys.queue(derive_shard("agent", agent), agent)
        ask(engine_server.url, "ZREMRANGEBYLEX", names[0], "[ada ", "(ada!")
        assert await store.queues.count([agent]) == [1]
        assert await take_all(store, agent) == ["cleo_1"]
    assert [ask(engine_server.url, "EXISTS", name) for name in names] == [0, 0, 0, 0]


async def test_ten_thousand_tasks_of_a_hundred_callers_are_served_in_equal_shares(
    engine_server: Server, tmp_path: Path
) -> None:
    """Two instances take from the queues of five agents; no caller is ever ahead by a tenth."""
    agents, callers = [operation() for _ in range(5)], 100
    settings = StoreSettings(engine_server.url, tmp_path / "blobs")
    async with await Store.open(settings) as one, await Store.open(settings) as other:
        for number in range(10_000 // callers // len(agents)):
            await asyncio.gather(
                *(
                    add(one, agent, f"c{caller}", number)
                    for agent in agents
                    for caller in range(callers)
                )
            )
        assert sum(await one.queues.count(agents)) == 10_000
        served, taken = Counter[str](), 0
        while True:
            tasks = await asyncio.gather(
                *(store.queues.take(agent) for agent in agents for store in (one, other))
            )
            names = [task.split("_")[1] for task in tasks if task is not None]
            if not names:
                break
            served.update(names)
            taken += len(names)
            if taken % 1_000 == 0:
                ahead = max(served.values()) - min(served[f"c{n}"] for n in range(callers))
                assert ahead <= max(len(agents), 0.1 * taken / callers), taken
    assert set(served.values()) == {100}


async def test_empty_queue_leaves_no_keys(engine_server: Server, tmp_path: Path) -> None:
    agent = operation()
    async with await Store.open(StoreSettings(engine_server.url, tmp_path / "blobs")) as store:
        for number in range(3):
            await add(store, agent, f"c{number}", number)
        await store.queues.take(agent)
        await store.queues.take(agent)
        await store.queues.drop(agent, "task_c2_2")
    names = keys.queue(derive_shard("agent", agent), agent)
    assert [ask(engine_server.url, "EXISTS", name) for name in names] == [0, 0, 0, 0]


def count_commands(url: str) -> Counter[str]:
    """Number of executions of each command that reads or writes a row."""
    reported = cast("dict[str, dict[str, int]]", ask(url, "INFO", "commandstats"))
    names = {key: key.removeprefix("cmdstat_") for key in reported}
    rows = {key: name for key, name in names.items() if name[0] in "zh" and name != "hello"}
    return Counter({name: reported[key]["calls"] for key, name in rows.items()})


async def test_adding_promoting_and_taking_cost_the_same_at_ten_and_at_ten_thousand(
    engine_server: Server, tmp_path: Path
) -> None:
    async with await Store.open(StoreSettings(engine_server.url, tmp_path / "blobs")) as store:
        small, large = [await measure(store, engine_server.url, size) for size in (10, 10_000)]
    assert small == large
    assert [sum(one.values()) for one in large] == [5, 5, 8]


async def measure(store: Store, url: str, size: int) -> list[Counter[str]]:
    """The engine commands to add, promote and take a task with ``size`` tasks waiting."""
    agent = operation()
    for number in range(size):
        await add(store, agent, f"c{number % 2}", number)
    spent: list[Counter[str]] = []
    acts: list[Callable[[], Awaitable[object]]] = [
        lambda: add(store, agent, "c1", size),
        lambda: add(store, agent, "c1", size, priority=7),
        lambda: store.queues.take(agent),
    ]
    for act in acts:
        before = count_commands(url)
        await act()
        spent.append(count_commands(url) - before)
    return spent
