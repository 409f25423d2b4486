"""``passerelle store forget``, ``hold`` and ``release``: what is over is deleted for good, or may not be.

An owner with all that it has, one session, or those that ended before a time.
"""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.cli.verify import read_since
from passerelle.core.errors import InvalidInput
from passerelle.core.ids import ALL_SHARDS, read_shard
from passerelle.core.principal import Principal
from passerelle.core.task.status import TERMINAL
from passerelle.core.wire.counts import format_count
from passerelle.gateway.store_setup import reach_store
from passerelle.store.archive.ended_tasks import find_outcomes
from passerelle.store.archive.session_survey import SessionChoice
from passerelle.store.archive.tombstones import LegalHold

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from passerelle.gateway.settings.model import Settings
    from passerelle.store.archive.forgetting import ForgettingPlan
    from passerelle.store.archive.frame import SessionFrame
    from passerelle.store.archive.session_forgetting import SessionPlan
    from passerelle.store.archive.tombstones import Tombstone
    from passerelle.store.store import Store

_KEY: Final = "pr_"
_SESSION: Final = "se_"
_NAMED: Final = 5
OUTCOMES: Final = tuple(sorted(TERMINAL))
"""How a task can have ended."""
OUT_OF_REACH: Final = (
    "out of reach: backups, copies and exports of the store or its blobs, earlier versions of objects in a bucket, "
    "logs, and what agents, webhooks and devices were told"
)


_EMBEDDED: Final = "the append-only file of the embedded engine was written anew"
_EXTERNAL: Final = (
    "to be done at each server, replicas too: BGREWRITEAOF, and BGSAVE where it keeps an RDB file"
)


@dataclass(frozen=True, slots=True)
class OwnerName:
    """Whose things: the name of a client or person, or the owner key that records show."""

    name: str
    tenant: str = "default"

    @property
    def key(self) -> str:
        """The owner key.

        Raises:
            InvalidInput: ``owner`` or ``tenant`` is empty.
        """
        for field, text in (("owner", self.name), ("tenant", self.tenant)):
            if not text.strip():
                raise InvalidInput(field, "is empty")
        is_key = self.name.startswith(_KEY) and read_shard(self.name) is not None
        return self.name if is_key else Principal(self.name, self.tenant).key


@dataclass(frozen=True, slots=True)
class OwnerForgetting:
    """Forgets what one owner has, over an open store."""

    store: Store
    settings: Settings
    owner: OwnerName

    async def plan(self) -> ForgettingPlan:
        """What would go. Raises InvalidInput, StoreUnavailable."""
        return await self.store.forgetting.plan(self.owner.key, self.store.clock.now_ms())

    async def finish(self) -> list[str]:
        """Ends what somebody has begun who was killed. Raises StoreUnavailable."""
        done = await self.store.forgetting.finish(self.owner.key)
        return [self._describe(one) for one in done]

    async def forget(self) -> list[str]:
        """Forgets it.

        Raises:
            InvalidInput: something is open, or somebody holds the owner.
            StoreUnavailable: something does not answer; where it had begun, the next call or start goes on.
        """
        now_ms = self.store.clock.now_ms()
        done = await self.store.forgetting.forget(self.owner.key, getpass.getuser(), now_ms)
        return [self._describe(done)]

    def _describe(self, tombstone: Tombstone) -> str:
        return f"forgotten: {self.owner.name}, tombstone {tombstone.key.text}"


def describe_plan(owner: OwnerName, plan: ForgettingPlan) -> Iterator[str]:
    """What would go, for people."""
    counts = plan.counts
    if plan.obstacle is not None:
        yield f"cannot be forgotten: {owner.name} {plan.obstacle}"
    yield (
        f"of {owner.name}: {format_count(counts.sessions, 'session')}, {counts.archived:,} of them in the archive, "
        f"with {format_count(counts.tasks, 'task')} and {format_count(counts.approvals, 'approval')}; "
        f"{format_count(counts.bytes, 'byte')}"
    )
    if counts.devices or counts.grants or counts.rules:
        yield (
            f"with the home session: {format_count(counts.devices, 'device')}, "
            f"{format_count(counts.grants, 'grant')} and {format_count(counts.rules, 'edited rule')}"
        )
    if plan.is_begun:
        yield f"somebody who forgot {owner.name} was killed: what was begun is ended first"
    if counts.rules:
        which = "rule goes" if counts.rules == 1 else "rules go"
        yield f"the {counts.rules:,} edited {which} too, and for everybody: put what should hold into the file first"
    if plan.others:
        some, left = ", ".join(plan.others[:_NAMED]), len(plan.others) - _NAMED
        yield (
            f"stays: {owner.name} takes part in {format_count(len(plan.others), 'session')} of others: "
            f"{some}{f' and {left:,} more' if left > 0 else ''}: "
            "passerelle store forget --session takes each with all that is in it"
        )


async def run_forget(
    settings: Settings, owner: OwnerName, *, dry_run: bool, confirm: Callable[[Sequence[str]], bool]
) -> list[str]:
    """What was done, for people. ``confirm`` is asked with what would go.

    Raises:
        InvalidInput: something is open, or somebody holds the owner.
        EngineFailed, StoreUnavailable: the store cannot be opened or read.
    """
    async with reach_store(settings) as store:
        forgetting = OwnerForgetting(store, settings, owner)
        plan = await forgetting.plan()
        lines = [*describe_plan(owner, plan)]
        if dry_run:
            return lines
        finished = list[str]()
        if plan.is_begun:
            finished += await forgetting.finish()
            plan = await forgetting.plan()
        if plan.has_any:
            if plan.obstacle is not None:
                raise InvalidInput("owner", f"{owner.name} {plan.obstacle}")
            if not confirm(lines):
                return [*finished, "nothing else is changed"]
            finished += await forgetting.forget()
        left = _EMBEDDED if settings.redis_url is None else _EXTERNAL
        return [*lines, *finished, *((left, OUT_OF_REACH) if finished else ())]


@dataclass(frozen=True, slots=True)
class SessionSelection:
    """One session, or those whose last event is from before a time, of the given outcomes if there are any."""

    session: str | None = None
    before: str | None = None
    """A time (RFC 3339), or how long ago it was (``400d``)."""
    outcomes: tuple[str, ...] = ()

    def choose(self, now_ms: int) -> SessionChoice:
        """What the survey looks for.

        Raises:
            InvalidInput: ``session``, ``before`` or ``outcome`` is none; or an outcome is said of one session.
        """
        wrong = [one for one in self.outcomes if one not in OUTCOMES]
        if wrong:
            raise InvalidInput("outcome", f"{wrong[0]!r} is none of {', '.join(OUTCOMES)}")
        if self.session is None:
            before_ms = read_since(self.before or "", now_ms, "before")
            return SessionChoice(before_ms, accepts=self._accepts)
        if not self.session.startswith(_SESSION) or read_shard(self.session) is None:
            raise InvalidInput("session", f"{self.session!r} is no id of a session (se_…)")
        return SessionChoice(now_ms, frozenset({self.session}))

    def _accepts(self, frame: SessionFrame) -> bool:
        if not self.outcomes:
            return True
        found = find_outcomes(frame)
        return bool(found) and found <= {*self.outcomes}

    def __str__(self) -> str:
        """How people call it."""
        if self.session is not None:
            return self.session
        ended = f", {' or '.join(self.outcomes)}" if self.outcomes else ""
        return f"sessions from before {self.before}{ended}"


def describe_session_plan(selection: SessionSelection, plan: SessionPlan) -> Iterator[str]:
    """What would go, for people."""
    counts = plan.counts
    yield (
        f"of {selection}: {format_count(counts.sessions, 'session')}, {counts.archived:,} of them in the archive, "
        f"with {format_count(counts.tasks, 'task')} and {format_count(counts.approvals, 'approval')}; "
        f"{format_count(counts.bytes, 'byte')}"
    )
    for sessions, why in (
        (plan.open, "something is open"),
        (plan.held, "an owner is held"),
        (plan.kept, "it is a home session: forget its owner"),
    ):
        for session in sessions[:_NAMED]:
            yield f"stays: {session}: {why}"
        if len(sessions) > _NAMED:
            yield f"stay: {len(sessions) - _NAMED:,} more of the same"


async def run_forget_sessions(
    settings: Settings,
    selection: SessionSelection,
    *,
    dry_run: bool,
    confirm: Callable[[Sequence[str]], bool],
) -> list[str]:
    """What was done, for people. ``confirm`` is asked with what would go.

    Raises:
        InvalidInput: the selection selects nothing that there could be; or the one session stays, and why.
        EngineFailed, StoreUnavailable: the store cannot be opened or read; where it had begun, the next call or start
            goes on.
    """
    async with reach_store(settings) as store:
        forgetting = store.session_forgetting
        choice = selection.choose(store.clock.now_ms())
        plan = await forgetting.plan(choice)
        lines = [*describe_session_plan(selection, plan)]
        if dry_run:
            return lines
        finished = await forgetting.finish(ALL_SHARDS)
        done = [f"ended what somebody had begun: tombstone {one.id}" for one in finished]
        if plan.counts.sessions:
            if not confirm(lines):
                return [*done, "nothing else is changed"]
            forgotten = await forgetting.forget(choice, getpass.getuser())
            done += [
                f"forgotten: {format_count(len(one.sessions), 'session')}, tombstone {one.id}"
                for one in forgotten.tombstones
            ]
        elif selection.session is not None and len(lines) > 1:
            raise InvalidInput("session", lines[1].removeprefix("stays: "))
        left = _EMBEDDED if settings.redis_url is None else _EXTERNAL
        return [*lines, *done, *((left, OUT_OF_REACH) if done else ())]


class ForgetVerb(Protocol):
    """What the flags mean, over the store of the settings."""

    def __call__(
        self, settings: Settings, *, dry_run: bool, confirm: Callable[[Sequence[str]], bool]
    ) -> Coroutine[None, None, list[str]]:
        """What was done, for people."""
        ...


def choose_verb(
    owner: str | None,
    tenant: str,
    session: str | None,
    before: str | None,
    outcomes: tuple[str, ...],
) -> ForgetVerb:
    """Which of the two it is.

    Raises:
        InvalidInput: not exactly one of owner, session and before is said, or an outcome without a time.
    """
    said = [one for one in (owner, session, before) if one is not None]
    if len(said) != 1:
        raise InvalidInput("owner", "or session or before has to be said, and one of them alone")
    if outcomes and before is None:
        raise InvalidInput("outcome", "is said with before alone")
    if owner is not None:
        return partial(run_forget, owner=OwnerName(owner, tenant))
    return partial(run_forget_sessions, selection=SessionSelection(session, before, outcomes))


async def run_hold(settings: Settings, owner: OwnerName, reason: str) -> list[str]:
    """Has nothing of an owner be forgotten from here on.

    Raises:
        InvalidInput: ``reason`` is empty, or it is forgotten at this moment.
        EngineFailed, StoreUnavailable: the store cannot be opened or written.
    """
    if not reason.strip():
        raise InvalidInput("reason", "is empty")
    async with reach_store(settings) as store:
        hold = LegalHold(store.clock.now_ms(), getpass.getuser(), reason)
        if not await store.tombstones.hold(owner.key, hold):
            raise InvalidInput("owner", f"{owner.name} is being forgotten: it is too late")
        held = await store.tombstones.find_hold(owner.key)
    return [f"held: {owner.name}, {held.reason if held else reason}"]


async def run_release(settings: Settings, owner: OwnerName) -> list[str]:
    """Takes a hold back. Raises EngineFailed, StoreUnavailable: the store cannot be opened or written."""
    async with reach_store(settings) as store:
        held = await store.tombstones.find_hold(owner.key)
        await store.tombstones.release(owner.key)
    return [f"released: {owner.name}" if held else f"nobody holds {owner.name}"]
