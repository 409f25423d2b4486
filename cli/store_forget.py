"""``passerelle store forget``, ``hold`` and ``release``: permanent deletion of ended data, and protection from it.

The target is an owner with all data, one session, or the sessions that ended before a time.
"""

from __future__ import annotations

import getpass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from passerelle.cli.verify import read_since
from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS, read_shard
from passerelle.core.principal import Principal
from passerelle.core.task.status import TERMINAL
from passerelle.core.wire.display import format_count
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
"""Statuses of ended tasks."""
OUT_OF_REACH: Final = (
    "out of reach: backups, copies and exports of the store or its blobs, earlier versions of objects in a bucket, "
    "logs, and data already sent to agents, webhooks and devices"
)


_EMBEDDED: Final = "the append-only file of the embedded engine was rewritten"
_EXTERNAL: Final = (
    "run at each server, replicas too: BGREWRITEAOF, and BGSAVE if it keeps an RDB file"
)


@frozen
class OwnerName:
    """An owner: the name of a client or person, or the owner key that records show."""

    name: str
    tenant: str = "default"

    @property
    def key(self) -> str:
        """Returns the owner key.

        Raises:
            InvalidInput: ``owner`` or ``tenant`` is empty.
        """
        for field, text in (("owner", self.name), ("tenant", self.tenant)):
            if not text.strip():
                raise InvalidInput(field, "is empty")
        is_key = self.name.startswith(_KEY) and read_shard(self.name) is not None
        return self.name if is_key else Principal(self.name, self.tenant).key


@frozen
class OwnerForgetting:
    """Deletes the data of one owner, in an open store."""

    store: Store
    settings: Settings
    owner: OwnerName

    async def plan(self) -> ForgettingPlan:
        """Returns what would be deleted. Raises InvalidInput, StoreUnavailable."""
        return await self.store.forgetting.plan(self.owner.key, self.store.clock.now_ms())

    async def finish(self) -> list[str]:
        """Completes an interrupted deletion. Raises StoreUnavailable."""
        done = await self.store.forgetting.finish(self.owner.key)
        return [self._describe(one) for one in done]

    async def forget(self) -> list[str]:
        """Deletes the data.

        Raises:
            InvalidInput: something is open, or a hold protects the owner.
            StoreUnavailable: the store does not respond; the next call or start resumes a deletion that has begun.
        """
        now_ms = self.store.clock.now_ms()
        done = await self.store.forgetting.forget(self.owner.key, getpass.getuser(), now_ms)
        return [self._describe(done)]

    def _describe(self, tombstone: Tombstone) -> str:
        return f"forgotten: {self.owner.name}, tombstone {tombstone.key.text}"


def describe_plan(owner: OwnerName, plan: ForgettingPlan) -> Iterator[str]:
    """Describes what would be deleted."""
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
        yield f"a deletion of {owner.name} was interrupted: it is completed first"
    if counts.rules:
        which = "rule goes" if counts.rules == 1 else "rules go"
        yield f"the {counts.rules:,} edited {which} too, for all callers: copy the ones to keep into the file first"
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
    """Deletes an owner's data; returns a report. ``confirm`` gets the plan.

    Raises:
        InvalidInput: something is open, or a hold protects the owner.
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
                return [*finished, "nothing else was changed"]
            finished += await forgetting.forget()
        left = _EMBEDDED if settings.redis_url is None else _EXTERNAL
        return [*lines, *finished, *((left, OUT_OF_REACH) if finished else ())]


@frozen
class SessionSelection:
    """One session, or the sessions whose last event is before a time, optionally with given outcomes only."""

    session: str | None = None
    before: str | None = None
    """A time (RFC 3339), or an age (``400d``)."""
    outcomes: tuple[str, ...] = ()

    def choose(self, now_ms: int) -> SessionChoice:
        """Returns the selection for the survey.

        Raises:
            InvalidInput: ``session``, ``before`` or ``outcome`` is invalid; or an outcome is given for one session.
        """
        wrong = [one for one in self.outcomes if one not in OUTCOMES]
        if wrong:
            raise InvalidInput("outcome", f"{wrong[0]!r} is not one of {', '.join(OUTCOMES)}")
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
        """Returns the selection as text."""
        if self.session is not None:
            return self.session
        ended = f", {' or '.join(self.outcomes)}" if self.outcomes else ""
        return f"sessions from before {self.before}{ended}"


def describe_session_plan(selection: SessionSelection, plan: SessionPlan) -> Iterator[str]:
    """Describes what would be deleted."""
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
    """Deletes sessions; returns a report. ``confirm`` gets the plan.

    Raises:
        InvalidInput: the selection is invalid; or the one session cannot be deleted, with the reason.
        EngineFailed, StoreUnavailable: the store cannot be opened or read; the next call or start resumes a begun
            deletion.
    """
    async with reach_store(settings) as store:
        forgetting = store.session_forgetting
        choice = selection.choose(store.clock.now_ms())
        plan = await forgetting.plan(choice)
        lines = [*describe_session_plan(selection, plan)]
        if dry_run:
            return lines
        finished = await forgetting.finish(ALL_SHARDS)
        done = [f"completed an interrupted deletion: tombstone {one.id}" for one in finished]
        if plan.counts.sessions:
            if not confirm(lines):
                return [*done, "nothing else was changed"]
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
    """The deletion that the flags select, applied to the configured store."""

    def __call__(
        self, settings: Settings, *, dry_run: bool, confirm: Callable[[Sequence[str]], bool]
    ) -> Coroutine[None, None, list[str]]:
        """Returns a report."""
        ...


def choose_verb(
    owner: str | None,
    tenant: str,
    session: str | None,
    before: str | None,
    outcomes: tuple[str, ...],
) -> ForgetVerb:
    """Returns the deletion that the flags select.

    Raises:
        InvalidInput: not exactly one of owner, session and before is given, or an outcome without a time.
    """
    given = [one for one in (owner, session, before) if one is not None]
    if len(given) != 1:
        raise InvalidInput("owner", "exactly one of owner, session and before is required")
    if outcomes and before is None:
        raise InvalidInput("outcome", "is allowed only with before")
    if owner is not None:
        return partial(run_forget, owner=OwnerName(owner, tenant))
    return partial(run_forget_sessions, selection=SessionSelection(session, before, outcomes))


async def run_hold(settings: Settings, owner: OwnerName, reason: str) -> list[str]:
    """Protects the data of an owner from deletion.

    Raises:
        InvalidInput: ``reason`` is empty, or a deletion is in progress.
        EngineFailed, StoreUnavailable: the store cannot be opened or written.
    """
    if not reason.strip():
        raise InvalidInput("reason", "is empty")
    async with reach_store(settings) as store:
        hold = LegalHold(store.clock.now_ms(), getpass.getuser(), reason)
        if not await store.tombstones.hold(owner.key, hold):
            raise InvalidInput("owner", f"{owner.name} is being deleted: it is too late")
        held = await store.tombstones.find_hold(owner.key)
    return [f"held: {owner.name}, {held.reason if held else reason}"]


async def run_release(settings: Settings, owner: OwnerName) -> list[str]:
    """Removes a hold. Raises EngineFailed, StoreUnavailable: the store cannot be opened or written."""
    async with reach_store(settings) as store:
        held = await store.tombstones.find_hold(owner.key)
        await store.tombstones.release(owner.key)
    return [f"released: {owner.name}" if held else f"no hold on {owner.name}"]
