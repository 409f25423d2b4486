"""A gateway without its edges, over a real engine: service, drivers, scripted peers, and access to stored data.

A test calls the service as the edges do, and sees what a caller sees::

    accepted, answer = await house.talk("chunks 3")
    assert (await house.record(accepted)).status is Status.COMPLETED

After each test, ``prove`` compares the stored streams with the snapshots (I3, I4, ENV-6, ENV-7).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

import orjson

from passerelle.channels.hub import Hub, HubSettings
from passerelle.control.catalogue import Catalogue
from passerelle.control.service import Service
from passerelle.core.batch import EntityKind, EntityRef, Incarnation
from passerelle.core.commands import (
    ActionAnswered,
    CancelTask,
    GetAction,
    GetTask,
    RespondAction,
    SubmitTurn,
    TurnAccepted,
    WaitMode,
)
from passerelle.core.events import Event, decode_event
from passerelle.core.facts import RetryPolicy
from passerelle.core.ids import ALL_SHARDS, Shard, shard_of
from passerelle.core.payloads.task import TaskWaiting
from passerelle.core.ports.chance import Clock
from passerelle.core.ports.due import DueRow
from passerelle.core.ports.leases import LeaseRequest
from passerelle.core.ports.log import Entry
from passerelle.core.principal import AccessScope, Principal
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import Status
from passerelle.core.wire.json import JsonObject
from passerelle.delegation.runs.deadlines import Deadlines
from passerelle.delegation.runs.follow_strategy import Timeouts
from passerelle.delegation.runs.outputs import OutputPolicy
from passerelle.delegation.runs.peer_profile import PeerTerms
from passerelle.delegation.runs.volume import NO_LIMITS_OF_ITS_OWN, OutputLimits
from passerelle.gateway.dependencies import Dependencies
from passerelle.gateway.parts import Parts, make_parts
from passerelle.peers.config import PeerConfig
from passerelle.peers.registry import PeerRegistry
from passerelle.permission_bridge.rules import DEFAULT_POLICY, Policy
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.limits.costs import Spending
from passerelle.runtime.limits.limit import Bounds
from passerelle.runtime.limits.limiter import Limiter
from passerelle.runtime.memory.room import MemoryRoom
from passerelle.runtime.records.contents import Contents
from passerelle.runtime.records.packet_reads import PacketReads
from passerelle.runtime.records.row_reads import RowReads
from passerelle.runtime.records.task_fields import OWNER
from passerelle.runtime.records.withheld import make_withholding
from passerelle.runtime.records.writes import AppendOptions, Written
from passerelle.store import keys
from passerelle.store.blobs import BlobStore
from passerelle.store.connection import pack
from passerelle.store.log import RedisEventLog
from passerelle.store.store import Store, StoreSettings
from tests.support.faults import FaultyBlobs, FaultyLog
from tests.support.proof import prove_session, read_stream
from tests.support.scripted_peer import ScriptedPeer
from tests.support.waiting import wait_until

OVERSIGHT: Final = frozenset(
    {AccessScope.OVERSEE_TASKS, AccessScope.OPERATE_TASKS, AccessScope.OVERSEE_APPROVALS}
)
"""Rights over data of other owners; callers that must be isolated do not have them."""
ADA: Final = Principal("ada", kind="person", scopes=frozenset(AccessScope) - OVERSIGHT)
BOB: Final = Principal("bob", kind="person", scopes=frozenset(AccessScope) - OVERSIGHT)
QUICK: Final = Timeouts(
    poll_s=0.02,
    poll_max_s=0.05,
    parked_poll_s=0.02,
    parked_poll_max_s=0.05,
    store_s=0.02,
    lease_s=0.01,
    liveness_s=0.25,
    doubt_s=0.4,
    cancel_s=0.2,
)
_WITHIN_S: Final = 10.0
_DRIVER: Final = Incarnation("inst_house", 1)


@dataclass(slots=True)
class MovableClock:
    """This machine's time, which a test can move forward."""

    ahead_ms: int = 0

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.ahead_ms


def make_free(store: Store, clock: Clock) -> Spending:
    """Neither quotas nor prices."""
    limiter = Limiter(store.limits, "in_test", clock)
    return Spending(limiter, clock, {}, {}, lambda _principal, _meter, _fact: None)


@dataclass(slots=True)
class Harness:
    """One instance and its dependencies. Tests control ``clock``, ``log`` and ``blobs``."""

    store: Store
    log: FaultyLog
    blobs: FaultyBlobs
    clock: MovableClock
    registry: PeerRegistry
    peers: dict[str, ScriptedPeer]
    stack: AsyncExitStack
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    timeouts: Timeouts = QUICK
    public_url: str | None = None
    acceptance: tuple[JsonObject, ...] = ()
    correlates: bool = False
    tags: frozenset[str] = frozenset()
    tags_of: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """Tags of one agent, in place of ``tags``."""
    doubt_s: float | None = None
    limits: OutputLimits = NO_LIMITS_OF_ITS_OWN
    rules: Policy = DEFAULT_POLICY
    outputs: OutputPolicy = field(default_factory=OutputPolicy)
    spending: Spending | None = None
    """Quotas of callers, from the next start on."""
    parts: Parts = field(init=False)
    _sessions: dict[str, None] = field(default_factory=dict[str, None])
    _sent: int = 0

    @property
    def service(self) -> Service:
        """The command service that the edges call."""
        return self.parts.service

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Starts a new service over the stored data, as after a restart of the process."""
        withholding = make_withholding(None, self.store.blobs, SystemIds().draw)
        reads = RowReads(PacketReads(Contents(self.log, self.store.blobs, withholding)))
        hub = await self.stack.enter_async_context(
            Hub(reads, self.store.hints, HubSettings(lambda: 0.5))
        )
        self.parts = make_parts(
            Dependencies(
                store=self.store,
                hub=hub,
                clock=self.clock,
                ids=SystemIds(),
                find_peer=self.registry.find,
                drives=lambda _shard: _DRIVER,
                find_sender=lambda _shard: _DRIVER,
                find_terms=self._find_terms,
                find_rules=lambda: self.rules,
                timeouts=self.timeouts,
                tally=lambda _result, _seconds, _why: None,
                wake_duties=lambda _shard: None,
                catalogue=Catalogue(self.registry),
                public_url=self.public_url,
                outputs=self.outputs,
                spending=self.spending or make_free(self.store, self.clock),
                find_principal=lambda name, _tenant: {"ada": ADA, "bob": BOB}.get(name),
            )
        )

    def _find_terms(self, agent: str) -> PeerTerms:
        timeouts = self.timeouts
        if self.doubt_s is not None:
            timeouts = replace(timeouts, doubt_s=self.doubt_s)
        return PeerTerms(
            timeouts,
            self.policy,
            acceptance=self.acceptance,
            correlates=self.correlates,
            tags=self.tags_of.get(agent, self.tags),
            limits=self.limits,
        )

    async def restart(self) -> None:
        """Stops all drivers, and starts a service without any state in memory."""
        await self.parts.dispatch.drain()
        await self.start()

    async def adopt(self, accepted: TurnAccepted) -> None:
        """Takes over a run that has no driver."""
        await self.parts.dispatch.adopt(task_of(accepted))

    async def replace_driver(self, accepted: TurnAccepted, driver: Incarnation) -> None:
        """Writes another driver into a task, as a takeover does; the current driver is not notified."""
        task = task_of(accepted)
        held = await self.parts.writes.load([task])
        decision = self.parts.writes.begin(accepted.session_id, held)
        decision.set_field(task, OWNER, str(driver).encode())
        outcome = await self.parts.writes.commit(decision, held, AppendOptions())
        assert isinstance(outcome, Written), outcome

    @property
    def peer(self) -> ScriptedPeer:
        """The only peer, for tests with one."""
        return self.peers["echo"]

    # ------------------------------------------------------------ calls

    def message(self, text: str) -> JsonObject:
        """A caller's message with a unique id."""
        self._sent += 1
        return {
            "messageId": f"m-{self._sent}",
            "role": "ROLE_USER",
            "parts": [{"text": text}],
        }

    async def send(  # noqa: PLR0913  a command has these parts
        self,
        text: str,
        *,
        agent: str = "echo",
        wait: WaitMode = "unary",
        who: Principal = ADA,
        task: str | None = None,
        context_id: str | None = None,
        session_id: str | None = None,
        idem: str | None = None,
        message: JsonObject | None = None,
        params: JsonObject | None = None,
    ) -> TurnAccepted:
        """Submits a turn."""
        command = SubmitTurn(
            agent,
            message or self.message(text),
            "a2a",
            wait,
            task=task,
            context_id=context_id,
            session_id=session_id,
            params=params,
        )
        accepted = cast("TurnAccepted", await self.service.execute(who, command, idem))
        self._sessions[accepted.session_id] = None
        return accepted

    def remember(self, session_id: str) -> None:
        """Has a session verified after the test."""
        self._sessions[session_id] = None

    async def await_answer(
        self, accepted: TurnAccepted, *, who: Principal = ADA, at_once: bool = False
    ) -> JsonObject:
        """Waits for the answer of a turn."""
        return await asyncio.wait_for(
            self.service.answer(who, accepted, at_once=at_once), _WITHIN_S
        )

    async def talk(self, text: str, *, agent: str = "echo") -> tuple[TurnAccepted, JsonObject]:
        """Submits a turn and waits for its answer."""
        accepted = await self.send(text, agent=agent)
        return accepted, await self.await_answer(accepted)

    async def read(self, accepted: TurnAccepted, who: Principal = ADA) -> JsonObject:
        """The Task as GetTask gives it."""
        return await self.service.read(who, GetTask(accepted.facade))

    async def watch(self, target: TurnAccepted | str) -> list[JsonObject]:
        """Every frame of a turn, or of a task from now on, until its end."""
        return await asyncio.wait_for(self._watch(target), _WITHIN_S)

    async def _watch(self, target: TurnAccepted | str) -> list[JsonObject]:
        async with self.service.follow(ADA, target) as followed:
            loaded = [await frame.load() async for frame in followed.frames]
            return [cast("JsonObject", orjson.loads(frame.data)) for frame in loaded]

    async def question(self, accepted: TurnAccepted, who: Principal = ADA) -> JsonObject:
        """The only open approval request of a task."""
        (action,) = (await self.record(accepted)).open_actions
        return await self.service.read(who, GetAction(action))

    async def respond(
        self, view: JsonObject, decision_id: str = "dec_1", who: Principal = ADA, **said: object
    ) -> ActionAnswered:
        """Answers the approval request shown in ``view``."""
        command = RespondAction(
            action_id=str(view["actionId"]),
            rev=cast("int", view["rev"]),
            digest=str(view["digest"]),
            decision_id=decision_id,
            **said,  # type: ignore[arg-type]  # the caller names the fields
        )
        return cast("ActionAnswered", await self.service.execute(who, command, None))

    async def cancel(self, accepted: TurnAccepted, reason: str | None = None) -> JsonObject:
        """Cancels a task; returns the Task after that."""
        command = CancelTask(accepted.facade, reason=reason)
        await self.service.execute(ADA, command, None)
        return await self.service.read(ADA, GetTask(accepted.facade))

    def forget_sessions(self) -> None:
        """Verifies no session after the test: trimmed streams cannot be replayed."""
        self._sessions.clear()

    # ------------------------------------------------------------ stored data

    async def record(self, accepted: TurnAccepted | str) -> TaskRecord:
        """The stored record of a task."""
        ref = task_of(accepted)
        record = (await self.parts.writes.load_one(ref)).record
        assert isinstance(record, TaskRecord)
        return record

    async def until(self, accepted: TurnAccepted | str, status: Status) -> TaskRecord:
        """The record, once it has the status."""

        async def look() -> TaskRecord | None:
            record = await self.record(accepted)
            return record if record.status is status else None

        found = await wait_until(look, _WITHIN_S, f"the task is {status}")
        assert found is not None
        return found

    async def entries(self, session_id: str) -> list[Entry]:
        """The stored stream of a session."""
        return await read_stream(self.store.log, session_id)

    async def events(self, accepted: TurnAccepted) -> list[Event]:
        """The stored events of a turn's session."""
        entries = await self.entries(accepted.session_id)
        return [decode_event(entry.data, entry.frame, entry.facade) for entry in entries]

    async def resources(self, accepted: TurnAccepted) -> list[str | None]:
        """The missing resource of each wait of the task, in order."""
        said = [event.fact.payload for event in await self.events(accepted)]
        return [one.resource for one in said if isinstance(one, TaskWaiting)]

    async def types(self, accepted: TurnAccepted) -> list[str]:
        """Their classes."""
        return [event.type for event in await self.events(accepted)]

    async def run_due(self, kind: str, entity: str, *, after_ms: int) -> None:
        """Advances the clock by ``after_ms`` and handles a due row of ``entity``."""
        member = f"{kind}:{entity}"
        # Before the row is due: a driver that checks for itself may have handled it a moment later.
        row = DueRow(member, (await self.due(entity))[member])
        self.clock.ahead_ms += after_ms
        deadlines = Deadlines(
            self.parts.writes,
            self.parts.actions,
            self.parts.dispatch,
            self.parts.inputs,
            self.parts.retries,
            self.parts.permissions.granting,
            self._keep,
        )
        handlers = {
            "timeout": deadlines.on_timeout,
            "idle": deadlines.on_idle,
            "expire": deadlines.on_expire,
            "return": deadlines.on_return,
            "mint": deadlines.on_mint,
            "stop": deadlines.on_stop,
            "cancel": deadlines.on_cancel,
            "input": deadlines.on_input,
            "send": deadlines.on_send,
            "retry": deadlines.on_retry,
            "output": self._expire_output,
            "prepare": self._put_back,
            "queued": self._handle_queued,
            "unblock": self._unblock,
        }
        await handlers[kind](shard_of(row.entity), row, self.clock.now_ms())

    async def _put_back(self, shard: Shard, row: DueRow, _now_ms: int) -> None:
        await self.parts.tasks.starting.preparing.on_due(shard, row, self._keep)

    async def _handle_queued(self, shard: Shard, row: DueRow, now_ms: int) -> None:
        await self.parts.turn_queues.on_due(shard, row, now_ms, self._keep)

    async def _unblock(self, _shard: Shard, row: DueRow, _now_ms: int) -> None:
        await self.parts.tasks.linking.unblock(row, self._keep)

    async def _expire_output(self, _shard: Shard, row: DueRow, now_ms: int) -> None:
        await self.parts.tasks.outputs.expire(row, now_ms, self._keep)

    async def due(self, entity: str) -> dict[str, str]:
        """The due rows in the shard of an entity, with the scores that claim them."""
        shard = shard_of(entity.partition(":")[0])
        (flat,) = await self.store.nodes.read(
            shard, pack("ZRANGE", keys.due(shard), 0, -1, "WITHSCORES")
        )
        parts = [part.decode() for part in cast("list[bytes]", flat)]
        return dict(zip(parts[::2], parts[1::2], strict=True))

    @staticmethod
    async def _keep(_shard: Shard, _row: DueRow) -> bool:
        return False

    async def prove(self) -> None:
        """Verifies the invariants of every session of the test."""
        for session_id in self._sessions:
            await prove_session(self.store.log, self.parts.contents, session_id)


def task_of(accepted: TurnAccepted | str) -> EntityRef:
    """The task of a turn, or of an id."""
    name = accepted if isinstance(accepted, str) else accepted.task_id
    return EntityRef(EntityKind.TASK, name)


@asynccontextmanager
async def open_harness(
    url: str,
    blobs: Path | str,
    *names: str,
    adjust: Callable[[PeerConfig], PeerConfig] = lambda config: config,
    memory: MemoryRoom | None = None,
) -> AsyncGenerator[Harness]:
    """A harness with a scripted peer for each name; at the end everything is verified and closed."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(await Store.open(StoreSettings(url, blobs)))
        opening = [
            store.leases.extend(LeaseRequest(shard, _DRIVER, opens=True, wants_duty=False), 120_000)
            for shard in ALL_SHARDS
        ]
        await asyncio.gather(*opening)
        log, faulty = FaultyLog(store.log), FaultyBlobs(store.blobs)
        # The service takes its ports from the store: tests can make these fail.
        store.log, store.blobs = cast("RedisEventLog", log), cast("BlobStore", faulty)
        peers = {
            name: await stack.enter_async_context(ScriptedPeer(name)) for name in names or ("echo",)
        }
        configs = [adjust(PeerConfig(name, peer.url)) for name, peer in peers.items()]
        limiter = None
        if any(config.bounds != Bounds() for config in configs):
            limiter = Limiter(store.limits, "inst_house", SystemClock(), round_s=0.05)
            await stack.enter_async_context(limiter)
        registry = PeerRegistry(configs, SystemClock(), limiter, memory=memory)
        stack.push_async_callback(registry.close)
        harness = Harness(store, log, faulty, MovableClock(), registry, peers, stack)
        await harness.start()
        stack.push_async_callback(_drain, harness)
        yield harness
        log.refuses_writes, log.before_append, log.after_append = False, None, None
        faulty.away = False
        await harness.prove()


async def _drain(harness: Harness) -> None:
    await harness.parts.dispatch.drain()
