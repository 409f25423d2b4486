"""``make stress``: two instances over one store, devices that drop, stall, reload and take over, and every fault.

``SEED=n`` plans the same run again; ``SHORT=1`` has 40 devices and each fault once. The run passes when afterwards

- each device holds the stored events, in order, or received a gap on the way; - no event arrived twice or out of
order within one history; - every close code is explained by a fault, and a superseded connection got 4509; - no
connection, no followed stream and no task of the loop is left.

The long form stops an instance under 500 devices that follow and 500 that do not read: it exits within ten seconds,
and the 500 have received everything from the other one within fifteen.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import structlog

from passerelle.channels.limits import ChannelLimits
from passerelle.core.errors import StoreUnavailable
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.runtime.observability.metrics import Metrics
from passerelle.runtime.observability.outages import Outages
from passerelle.store.retention import Archived
from passerelle.store.store import Store, StoreSettings
from tests.integration.channels.rig import BackEnd, Rig, serve
from tests.stress.reader import Reader
from tests.support.draining import Numbers, play_drain
from tests.support.engine import ask
from tests.support.failover import Pair, run_pair
from tests.support.ports import find_free_port
from tests.support.tcp_proxy import FaultProxy, fault_proxy
from tests.support.waiting import wait_until

EXPLAINED: Final = frozenset(
    {1000, 1001, 1005, 1006, 1011, 1012, 4000, 4001, 4003, 4004, 4008, 4012}
)
"""Close codes after which a device may reconnect: cuts, drains, replays in turns, an unavailable store."""
LIMITS: Final = ChannelLimits(
    principal_connections=10_000,
    heartbeat_s=1,
    idle_s=10,
    recheck_s=2,
    # Here the state of a stream is the list of all its event ids.
    snapshot_bytes=1 << 24,
)
_SETTLES_S: Final = 30.0
_BEGINS_S: Final = 120.0
"""All devices connect at once; no guarantee limits the time of that on a machine with other work."""
_TRIM_AT: Final = 40
_STARTS: Final = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """Amounts of everything."""

    seed: int
    readers: int
    sessions: int
    rounds: int
    pause_s: float


@dataclass
class Instance:
    """One gateway, channels only, behind a proxy that can be cut and moved."""

    rig: Rig
    door: FaultProxy
    life: AsyncExitStack

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.door.port}/v1/channel"


@dataclass
class Stage:
    """Everything that faults apply to."""

    pair: Pair
    folder: Path
    dice: Random
    instances: list[Instance] = field(default_factory=list[Instance])
    sessions: list[str] = field(default_factory=list[str])
    readers: list[Reader] = field(default_factory=list[Reader])
    promoted: bool = False

    @property
    def engine(self) -> str:
        """The server that currently holds the data."""
        return (self.pair.replica if self.promoted else self.pair.primary).url

    @asynccontextmanager
    async def run_rig(self) -> AsyncGenerator[Rig]:
        """A hub and an endpoint with separate store connections; one instance over each back end."""
        settings = StoreSettings(self.pair.url, self.folder)
        async with await Store.open(settings) as store:
            outages = Outages(store.log, Metrics(), structlog.get_logger())
            backend: BackEnd = "fast" if self.instances else "asgi"
            async with serve(
                store, LIMITS, audit_s=1, on_lost=outages.lose, backend=backend
            ) as rig:
                if self.instances:
                    rig.control.owners = self.instances[0].rig.control.owners
                yield rig
            await outages.close()

    async def start_instance(self, door: FaultProxy) -> Instance:
        """Starts an instance behind a proxy; restarts it if the store is unavailable, as a supervisor would."""
        life = AsyncExitStack()
        rig = await self._enter(life)
        door.upstream = f"127.0.0.1:{rig.port}"
        return Instance(rig, door, life)

    async def _enter(self, life: AsyncExitStack) -> Rig:
        for _ in range(_STARTS):
            with suppress(StoreUnavailable):
                return await life.enter_async_context(self.run_rig())
            await asyncio.sleep(0.5)
        return await life.enter_async_context(self.run_rig())

    async def append(self, session: str, count: int) -> None:
        """Stores events; retries while the store is unavailable or a write has an unknown outcome."""
        epoch = f"{self.dice.getrandbits(32):08x}"
        try:
            await self.instances[0].rig.append(session, count, epoch=epoch)
        except (StoreUnavailable, AssertionError):
            await asyncio.sleep(0.05)

    async def publish(self, session: str, done: asyncio.Event) -> None:
        """Writes until the end of the run."""
        while not done.is_set():
            await self.append(session, self.dice.randint(1, 3))
            await asyncio.sleep(self.dice.uniform(0.02, 0.08))

    async def read_truth(self, session: str) -> list[str]:
        """The ids of all stored events."""
        stream = StreamRef(StreamKind.SESSION, session)
        while True:
            try:
                log = self.instances[0].rig.store.log
                entries = await log.read_page(stream, 0, 1_000_000)
            except StoreUnavailable:
                await asyncio.sleep(0.2)  # bounded by the run
            else:
                return [entry.event_id for entry in entries]


async def cut_devices(stage: Stage) -> None:
    """Cuts every socket without a close handshake."""
    for instance in stage.instances:
        instance.door.cut()


async def cut_hints(stage: Stage) -> None:
    """Kills the subscription connections: hints are lost."""
    ask(stage.engine, "CLIENT", "KILL", "TYPE", "pubsub")


async def pause_store(stage: Stage) -> None:
    """Blocks all traffic to and from the store for a while."""
    stage.pair.address.open.clear()
    await asyncio.sleep(stage.dice.uniform(0.5, 1.5))
    stage.pair.address.open.set()


async def trim(stage: Stage) -> None:
    """Trims the older half of a stream, even if devices lag."""
    session = stage.dice.choice(stage.sessions)
    store = stage.instances[0].rig.store
    upto = len(await stage.read_truth(session))
    archived = Archived("blob:a", "0" * 64, 0)
    await store.retention.trim(session, upto, archived, cap_entries=_TRIM_AT)


async def take_over(stage: Stage) -> None:
    """Opens second connections of some devices."""
    chosen = stage.dice.sample(stage.readers, max(1, len(stage.readers) // 8))
    # Right after a fault that cut them no connection exists that could be superseded.
    await wait_until(
        lambda: all(reader.is_linked for reader in chosen), _BEGINS_S, "those are linked"
    )
    await asyncio.gather(*(reader.take_over() for reader in chosen))


async def drain_instance(stage: Stage) -> None:
    """Drains one instance; its devices continue at the other, then it restarts."""
    await _replace(stage, within_ms=300, jitter_ms=700)


async def kill_instance(stage: Stage) -> None:
    """Kills one instance; its devices continue at the other, then it restarts."""
    stage.instances[1].door.cut()
    await _replace(stage, within_ms=0, jitter_ms=0)


async def _replace(stage: Stage, within_ms: int, jitter_ms: int) -> None:
    other, going = stage.instances
    going.door.upstream = other.door.upstream
    await going.rig.endpoint.drain(within_ms, jitter_ms)
    await going.life.aclose()
    stage.instances[1] = await stage.start_instance(going.door)


async def promote(stage: Stage) -> None:
    """Promotes a replica that lacks acknowledged writes; their sequences are used again."""
    await stage.pair.await_replicated()
    stage.pair.cut_replication()
    tops = {f"session:{one}": len(await stage.read_truth(one)) for one in stage.sessions}
    for session in stage.sessions:
        await stage.append(session, 5)
    await wait_until(
        lambda: any((one.sequence or 0) > tops[one.stream] for one in stage.readers),
        _BEGINS_S,
        "a device has what will be lost",
    )
    stage.pair.promote()
    stage.promoted = True
    await wait_until(
        lambda: any(one.gaps["forked"] + one.gaps["ahead"] for one in stage.readers),
        _BEGINS_S,
        "the lost tail is announced",
    )


async def flush(stage: Stage) -> None:
    """Deletes all data."""
    ask(stage.engine, "FLUSHALL")


FAULTS: Final[tuple[Callable[[Stage], Awaitable[None]], ...]] = (
    cut_devices,
    cut_hints,
    pause_store,
    trim,
    take_over,
    drain_instance,
    kill_instance,
    flush,
)


async def play(plan: Plan, stage: Stage) -> list[str]:
    """Runs the plan; returns one sentence per violation."""
    owner = stage.instances[0].rig
    stage.sessions = [owner.make_session() for _ in range(plan.sessions)]
    for session in stage.sessions:
        await stage.append(session, 3)
    stage.readers = [_make_reader(stage, number) for number in range(plan.readers)]
    done = asyncio.Event()
    publishers = [asyncio.create_task(stage.publish(one, done)) for one in stage.sessions]
    lives = [asyncio.create_task(reader.live()) for reader in stage.readers]
    await wait_until(
        lambda: all(reader.events for reader in stage.readers), _BEGINS_S, "every device follows"
    )
    await _do_faults(plan, stage)
    done.set()
    await asyncio.gather(*publishers)
    for session in stage.sessions:  # a stream that was flushed at the very end exists again
        await stage.append(session, 2)
    faults = await _await_truth(stage)
    for reader in stage.readers:
        reader.done.set()
    for session in stage.sessions:  # wakes up the readers, so that they notice the end
        await stage.append(session, 1)
    await asyncio.wait(lives, timeout=10)
    for life in lives:
        life.cancel()
    await asyncio.gather(*lives, return_exceptions=True)
    return [*faults, *_judge(stage), *await _find_leaks(stage)]


async def _do_faults(plan: Plan, stage: Stage) -> None:
    order = [fault for _ in range(plan.rounds) for fault in FAULTS]
    stage.dice.shuffle(order)
    order.insert(stage.dice.randrange(len(order)), promote)
    for fault in order:
        await asyncio.sleep(plan.pause_s)
        began_s = time.monotonic()
        await fault(stage)
        gaps = sum((reader.gaps for reader in stage.readers), Counter[str]())
        print(
            f"  {fault.__name__:15} {time.monotonic() - began_s:4.1f} s, gaps so far {dict(gaps)}"
        )
    await asyncio.sleep(plan.pause_s)


def _make_reader(stage: Stage, number: int) -> Reader:
    instance = stage.instances[number % 2]
    session = stage.sessions[number % len(stage.sessions)]
    stalls = stage.dice.choice([0.0, 0.0, 0.02])
    dice = Random(stage.dice.random())
    return Reader(instance.url, f"dev{number}", f"session:{session}", dice, stalls=stalls)


async def _await_truth(stage: Stage) -> list[str]:
    """Readers that do not reach the stored state."""
    truths = {f"session:{one}": await stage.read_truth(one) for one in stage.sessions}

    def list_astray() -> list[Reader]:
        return [one for one in stage.readers if not _holds(one, truths[one.stream])]

    try:
        await wait_until(lambda: not list_astray(), _SETTLES_S, "every device is at the truth")
    except AssertionError:
        return [
            f"{one.device} holds {len(one.events)} events up to {one.sequence}, "
            f"the store has {len(truths[one.stream])}"
            for one in list_astray()
        ]
    return []


def _holds(reader: Reader, truth: list[str]) -> bool:
    """Whether a device's newest events are the stored ones; older ones may have been trimmed from the store."""
    return len(reader.events) >= len(truth) and reader.events[-len(truth) :] == truth


def _judge(stage: Stage) -> list[str]:
    faults = [fault for reader in stage.readers for fault in reader.faults]
    codes = sum((reader.codes for reader in stage.readers), Counter[int]())
    faults += [
        f"close code {code}, {n} times" for code, n in codes.items() if code not in EXPLAINED
    ]
    if not any(reader.superseded for reader in stage.readers):
        faults.append("no connection was superseded: takeover was not played")
    return faults


async def _find_leaks(stage: Stage) -> list[str]:
    rigs = [instance.rig for instance in stage.instances]
    try:
        await wait_until(
            lambda: not any(rig.endpoint.connections or rig.hub.streams for rig in rigs),
            10,
            "no connection and no followed stream is left",
        )
    except AssertionError as error:
        return [str(error)]
    return []


async def run(plan: Plan) -> list[str]:
    """Starts the processes and runs the plan."""
    before = asyncio.all_tasks()
    with tempfile.TemporaryDirectory(prefix="psr-stress-") as folder:
        async with AsyncExitStack() as stack:
            pair = await stack.enter_async_context(run_pair())
            dice = Random(plan.seed)
            stage = Stage(pair, Path(folder), dice)
            for _ in range(2):
                door = await stack.enter_async_context(fault_proxy("127.0.0.1:1"))
                stage.instances.append(await stage.start_instance(door))
            faults = await play(plan, stage)
            for instance in stage.instances:
                await instance.life.aclose()
    try:
        await wait_until(lambda: not asyncio.all_tasks() - before, 5, "no task of the loop is left")
    except AssertionError:
        left = [str(task.get_coro()) for task in asyncio.all_tasks() - before]
        faults += [f"a task of the loop is left: {name}" for name in left]
    return faults


async def end_instance(numbers: Numbers) -> list[str]:
    """Stops an instance under many devices, half of which no longer read."""
    with tempfile.TemporaryDirectory(prefix="psr-stress-") as folder:
        try:
            await play_drain(Path(folder), numbers, find_free_port())
        except AssertionError as error:
            return [
                f"{numbers.following} and {numbers.lagging} devices, one instance ends: {error}"
            ]
    return []


def main() -> int:
    """Returns the exit status: 0 when everything held."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    asked.add_argument("--short", action="store_true")
    chosen = asked.parse_args()
    short = Plan(chosen.seed, readers=40, sessions=4, rounds=1, pause_s=0.4)
    whole = Plan(chosen.seed, readers=300, sessions=20, rounds=5, pause_s=3.0)
    plan = short if chosen.short else whole
    began_s = time.monotonic()
    print(f"stress: seed {plan.seed}, {plan.readers} devices, {plan.sessions} sessions", flush=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    faults = asyncio.run(run(plan))
    if not chosen.short:
        faults += asyncio.run(end_instance(Numbers(following=500, lagging=500)))
    for fault in faults:
        print(f"stress: {fault}")
    word = "failed" if faults else "passed"
    print(f"stress: {word} in {time.monotonic() - began_s:.0f} s; again with SEED={plan.seed}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
