"""Where a conversation lives: contexts, sessions and threads by name, without a lookup.

A context id is scoped by its caller, so two callers with the same text never meet (G4). A text of the caller's
routes by the hash of (tenant, principal, context). An id in our own form routes by its tag if that thread
exists for the caller, and like any other text if not: nobody can place things by making up ids.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.ids import ALL_SHARDS, Shard, derive_id, derive_shard, read_shard
from passerelle.core.ids import place as shard_of
from passerelle.core.wire.record import value

if TYPE_CHECKING:
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
    """The place of a context; ``shard`` overrides where its text would route to."""
    name = (principal.tenant, principal.id, context_id)
    home = shard or derive_shard("context", *name)
    thread = EntityRef(EntityKind.THREAD, derive_id("th", home, "thread", *name))
    session = EntityRef(EntityKind.SESSION, derive_id("se", home, "session", *name))
    return Place(home, context_id, thread, session)


def list_places(principal: Principal, context_id: str) -> list[Place]:
    """Where a context may live, the likelier place first."""
    by_hash = place_context(principal, context_id)
    tagged = read_shard(context_id)
    if tagged is None or tagged == by_hash.shard:
        return [by_hash]
    return [place_context(principal, context_id, tagged), by_hash]


def mint_place(principal: Principal, ids: Ids, idem: str | None, session_id: str | None) -> Place:
    """A place for a new context: in a named session, by the idempotency key, or anywhere.

    With a key, a repeat of the same request looks in the same shard and finds its first result there.

    Raises:
        ValueError: ``session_id`` is not an id.
    """
    if session_id is not None:
        shard = shard_of(session_id)
    elif idem is not None:
        shard = derive_shard("idem", principal.tenant, principal.id, idem)
    else:
        shard = draw_shard(ids)
    place = place_context(principal, ids.mint("ctx", shard), shard)
    if session_id is None:
        return place
    return Place(shard, place.context_id, place.thread, EntityRef(EntityKind.SESSION, session_id))


def draw_shard(ids: Ids) -> Shard:
    """Where something new lives that may live anywhere."""
    return ALL_SHARDS[ids.draw(6)]


def hash_key(principal: Principal, key: str) -> str:
    """The stored name of a caller's idempotency key."""
    text = f"{principal.tenant}\0{principal.id}\0{key}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]
