"""A cluster failover that loses acknowledged writes, under tasks, open approvals and continuous calls.

Three primaries with a replica each, three gateways. Approvals are requested and stay open; slots move under load;
then the replica of one primary is cut off, more tasks are begun and answered, the primary dies, and the cluster
promotes the replica. The remaining approvals are answered after that. ``lost_tails`` defines what may be lost.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast

import redis

from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.ids import shard_of
from tests.chaos.lost_tails import (
    Errand,
    Scene,
    asks,
    await_begun,
    count_noticed,
    open_scene,
    prove,
)
from tests.chaos.plan import LASTING
from tests.chaos.store_view import StoreView
from tests.support.cluster import ServerCluster, run_replicated_cluster
from tests.support.engine import ask, redis_on_path

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path
    from random import Random

_GATEWAYS: Final = ("one", "two", "three")
_EARLY: Final = 36
_IN_TAIL: Final = 12
_CALLERS: Final = 6
_SLOTS: Final = 2_000
_TAIL_S: Final = 4.0
_QUIET_S: Final = 5.0
_AT_ONCE: Final = 32
"""Callers that come for the end of their task."""


class ClusterView(StoreView):
    """The same view of a store on several nodes."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._whole = redis.RedisCluster.from_url(url)  # pyright: ignore[reportUnknownMemberType]

    def close(self) -> None:
        super().close()
        self._whole.close()

    def _ask(self, commands: list[tuple[str | int, ...]]) -> list[object]:
        whole = cast("Any", self._whole)  # its types are partial
        if commands[0][0] == "KEYS":
            urls = [f"redis://{node.host}:{node.port}" for node in whole.get_primaries()]
            return [[name for url in urls for name in cast("list[bytes]", ask(url, *commands[0]))]]
        with whole.pipeline() as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return cast("list[object]", pipeline.execute())


@dataclass(slots=True)
class Load:
    """Callers that send short messages one after the other, to the gateways in turn."""

    scene: Scene
    prefix: str
    errands: list[Errand] = field(default_factory=list[Errand])
    took_s: list[float] = field(default_factory=list[float])
    answered_s: list[float] = field(default_factory=list[float])
    is_early: bool = True

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[None]:
        """Runs the callers; each has received its last answer when this ends."""
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for caller in range(_CALLERS):
                group.create_task(self._call(caller, stop))
            yield
            stop.set()

    async def _call(self, caller: int, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            label = f"{self.prefix}c{caller}n{number:04d}"
            text = f"{label} work chunks=1 every=0.01"
            errand = Errand(label, LASTING[0], text, number, self.is_early)
            self.errands.append(errand)
            began_s = time.monotonic()
            await self.scene.begin(errand)
            # Callers that were answered while the replica was cut off may hold state that is lost.
            errand.is_early = errand.is_early and self.is_early
            self.answered_s.append(time.monotonic())
            self.took_s.append(self.answered_s[-1] - began_s)
            number += 1

    def longest_gap(self, since_s: float) -> float:
        """The longest time without any answer, since then."""
        times = [since_s, *sorted(at for at in self.answered_s if at > since_s), time.monotonic()]
        return max(later - earlier for earlier, later in pairwise(times))


async def run_cluster_tails(folder: Path, draw: Random) -> list[str]:
    """Runs one round; prints the measurements. Returns one line per fault found."""
    binary = redis_on_path()
    assert binary is not None, "redis-server is not on PATH"
    with run_replicated_cluster(binary) as cluster:
        view = partial(ClusterView, cluster.replicas.nodes[0])
        async with open_scene(folder, cluster.urls, view, _GATEWAYS) as scene:
            return await _play(scene, cluster, draw)


async def _play(scene: Scene, cluster: ServerCluster, draw: Random) -> list[str]:
    source, target = draw.sample(range(3), 2)
    early = [_plan(f"e{number:02d}", draw, number, is_early=True) for number in range(_EARLY)]
    late = [_plan(f"t{number:02d}", draw, number, is_early=False) for number in range(_IN_TAIL)]
    load = Load(scene, "l")
    for errand in early:
        await scene.begin(errand)
    await await_begun(scene, early)
    asked = [errand for errand in early if asks(errand)]
    async with load.run():
        quiet_s = time.monotonic()
        await asyncio.sleep(_QUIET_S)
        _describe("quiet", load, quiet_s, f"{len(asked)} questions open")
        moved_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            group.create_task(cluster.move_slots(source, target, _SLOTS))
            for errand in asked[::3]:
                group.create_task(scene.reply(errand))
        _describe(
            f"{_SLOTS} slots moved",
            load,
            moved_s,
            f"{len(asked[::3])} questions answered meanwhile",
        )
        load.is_early = False
        # Errands with an open approval have had it for long: the replica has it.
        await cluster.await_replicated(target)
        there = [one for one in asked if cluster.serves(target, shard_of(one.task_id))]
        cluster.cut_replication(target)
        cut_s = time.monotonic()
        in_tail = [asyncio.create_task(scene.begin(errand)) for errand in late]
        in_tail += [asyncio.create_task(scene.reply(errand)) for errand in asked[1::3]]
        await asyncio.sleep(_TAIL_S)
        behind = cluster.count_behind(target)
        _describe(
            "replica cut off", load, cut_s, f"{len(asked[1::3])} questions answered meanwhile"
        )
        cluster.kill_primary(target)
        killed_s = time.monotonic()
        await cluster.await_promoted(target)
        promoted_s = time.monotonic() - killed_s
        load.is_early = True
        await asyncio.gather(*in_tail)
        await asyncio.sleep(_QUIET_S)
        note = (
            f"{behind} bytes of {_TAIL_S:.0f} s gone, promoted after {promoted_s:.1f} s,"
            f" {len(there)} of the approvals are stored there"
        )
        _describe("primary killed, replica behind", load, killed_s, note)
    await _check_open(scene, asked[2::3])
    every = [*early, *late, *load.errands]
    many = asyncio.Semaphore(_AT_ONCE)

    async def finish(errand: Errand) -> None:
        async with many:
            await scene.finish(errand)

    await asyncio.gather(*map(finish, every))
    await prove(
        scene,
        early + [one for one in load.errands if one.is_early],
        late + [one for one in load.errands if not one.is_early],
    )
    noticed = sum([await count_noticed(scene, gateway) for gateway in scene.gateways])
    gone = sum(errand.end is None for errand in every)
    print(
        f"chaos: cluster: {len(every)} tasks, {len(asked)} with a question, {gone} gone,"
        f" {noticed:.0f} losses noticed, {len(scene.faults)} faults",
        flush=True,
    )
    if not noticed:
        scene.faults.append("no gateway noticed a loss")
    return scene.faults


async def _check_open(scene: Scene, asked: list[Errand]) -> None:
    """Approvals without an answer must still be open."""
    for errand in asked:
        task = object_at(await scene.read(errand) or {}, "result")
        state = text_at(object_at(task, "status"), "state")
        if state != "TASK_STATE_INPUT_REQUIRED":
            scene.faults.append(
                f"{errand.label}: its question was open, and it is {state or 'gone'}"
            )


def _plan(label: str, draw: Random, number: int, *, is_early: bool) -> Errand:
    verb = "ask" if number % 2 else "work"
    pace = f"chunks={draw.randint(10, 60)} every={draw.choice([0.1, 0.3])}"
    return Errand(label, draw.choice(LASTING), f"{label} {verb} {pace}", number, is_early)


def _describe(what: str, load: Load, since_s: float, note: str) -> None:
    took = sorted(
        took for took, at in zip(load.took_s, load.answered_s, strict=True) if at > since_s
    )
    p50, p99 = (took[int(len(took) * part)] * 1000 for part in (0.5, 0.99)) if took else (0, 0)
    print(
        f"chaos: cluster: {what}: {time.monotonic() - since_s:.1f} s, {len(took)} short messages,"
        f" p50 {p50:.0f} p99 {p99:.0f} ms, longest without any answer {load.longest_gap(since_s):.1f} s; {note}",
        flush=True,
    )
