"""Where conversations and home sessions are stored: contexts, sessions and threads by name, without a lookup.

A context id is scoped to its caller, so two callers with the same text never share a context (G4). A text chosen by
the caller routes by the hash of (tenant, principal, context). A gateway-minted id routes by its tag if that thread
exists for the caller, and like any other text if not: callers cannot choose shards with invented ids.

The home session of a principal stores facts about a caller that belong to no conversation. It is an ordinary session
with a derived id: its owner follows it over a channel like any other.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import EntityKind, EntityRef, IdempotencyRow
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.frozen import frozen
from passerelle.core.ids import ALL_SHARDS, Shard, derive_id, derive_shard, read_shard, shard_of
from passerelle.core.payloads.conversation import SessionCreated
from passerelle.core.session import machine as sessions
from passerelle.core.session.machine import BeginSession
from passerelle.core.wire.record import value
from passerelle.runtime.records.writes import AppendOptions, Writes

if TYPE_CHECKING:
    from passerelle.core.decision import Decision
    from passerelle.core.events import AnyPayload
    from passerelle.core.ports.chance import Ids
    from passerelle.core.principal import Principal


@value
class Place:
    """One context: its id, its thread, and the session that a new thread would open."""

    shard: Shard
    """The shard of all three."""
    context_id: str
    thread: EntityRef
    session: EntityRef


def place_context(principal: Principal, context_id: str, shard: Shard | None = None) -> Place:
    """The place of a context; ``shard`` overrides the shard derived from its text."""
    name = (principal.tenant, principal.id, context_id)
    home = shard or derive_shard("context", *name)
    thread = EntityRef(EntityKind.THREAD, derive_id("th", home, "thread", *name))
    session = EntityRef(EntityKind.SESSION, derive_id("se", home, "session", *name))
    return Place(home, context_id, thread, session)


def list_places(principal: Principal, context_id: str) -> list[Place]:
    """The places where a context may be stored, the likelier one first."""
    by_hash = place_context(principal, context_id)
    tagged = read_shard(context_id)
    if tagged is None or tagged == by_hash.shard:
        return [by_hash]
    return [place_context(principal, context_id, tagged), by_hash]


def mint_place(principal: Principal, ids: Ids, idem: str | None, session_id: str | None) -> Place:
    """A place for a new context: in a named session, by the idempotency key, or in a random shard.

    With a key, a repeat of the same request looks in the same shard and finds its first result there.

    Raises:
        ValueError: ``session_id`` is not an id.
    """
    shard = choose_shard(principal, ids, idem) if session_id is None else shard_of(session_id)
    place = place_context(principal, ids.mint("ctx", shard), shard)
    if session_id is None:
        return place
    return Place(shard, place.context_id, place.thread, EntityRef(EntityKind.SESSION, session_id))


def choose_shard(principal: Principal, ids: Ids, idem: str | None) -> Shard:
    """The shard of a new context: derived from the idempotency key if there is one, else random."""
    if idem is None:
        return draw_shard(ids)
    return derive_shard("idem", principal.tenant, principal.id, idem)


def draw_shard(ids: Ids) -> Shard:
    """A random shard."""
    return ALL_SHARDS[ids.draw(6)]


def hash_key(principal: Principal, key: str) -> str:
    """The stored name of a caller's idempotency key."""
    text = f"{principal.tenant}\0{principal.id}\0{key}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


TITLE: Final = "home"
_KEY_TTL_MS: Final = 60_000


def name_home(principal: Principal) -> str:
    """The id of the home session."""
    return principal.home_session


def describe_session(
    owner: Principal, title: str | None = None, labels: dict[str, str] | None = None
) -> SessionCreated:
    """The fact that opens a session of a caller."""
    return SessionCreated(
        owner=owner.key,
        tenant=owner.tenant,
        principal=owner.id,
        title=title,
        labels=labels or None,
    )


def open_home(decision: Decision, ref: EntityRef, principal: Principal) -> None:
    """Opens the home session, unless it exists."""
    if decision.state(ref) is not None:
        return
    begin = BeginSession(ref.id, describe_session(principal, TITLE))
    decision.add(sessions.decide(None, begin))


@frozen
class Home:
    """Writes facts into home sessions."""

    writes: Writes

    async def record(
        self,
        principal: Principal,
        payload: AnyPayload,
        trace_id: str | None = None,
        *,
        key: str | None = None,
        row: IdempotencyRow | None = None,
    ) -> None:
        """Stores one fact; the first one opens the session. With a ``key`` it is stored once, across all instances.

        ``row`` is the idempotency row of a command, in place of a minted one.

        Raises:
            StoreUnavailable: nothing is known to be written.
        """
        session = name_home(principal)
        ref = EntityRef(EntityKind.SESSION, session)
        # The fact changes no record, so only this row distinguishes a retry from a second fact (I2).
        name = hash_key(principal, key or self.writes.ids.mint("home", principal.home))
        row = row or IdempotencyRow(name, name, b"", _KEY_TTL_MS)

        def body(decision: Decision) -> AppendOptions:
            open_home(decision, ref, principal)
            decision.add([Fact(Scope(session, trace_id=trace_id), payload)])
            return AppendOptions(idem=row)

        await self.writes.decide(session, [ref], body)
