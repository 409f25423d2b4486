"""The home session of a principal: facts about a caller that belong to no conversation.

An ordinary session with a derived id: its owner follows it over a channel like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import EntityKind, EntityRef, IdempotencyRow
from passerelle.core.events import Fact
from passerelle.core.facts import Scope
from passerelle.core.ids import derive_id
from passerelle.core.payloads.conversation import SessionCreated
from passerelle.core.session import machine as sessions
from passerelle.core.session.machine import OpenSession
from passerelle.runtime.records.places import hash_key
from passerelle.runtime.records.writes import Terms, Writes

if TYPE_CHECKING:
    from passerelle.core.decision import Decision
    from passerelle.core.events import AnyPayload
    from passerelle.core.principal import Principal

TITLE: Final = "home"
_KEY_TTL_MS: Final = 60_000


def name_home(principal: Principal) -> str:
    """The id of the home session."""
    return derive_id("se", principal.home, "home", principal.tenant, principal.id)


def open_home(decision: Decision, ref: EntityRef, principal: Principal) -> None:
    """Opens the home session, unless it is there."""
    if decision.state(ref) is not None:
        return
    created = SessionCreated(
        owner=principal.key, tenant=principal.tenant, principal=principal.id, title=TITLE
    )
    decision.add(sessions.decide(None, OpenSession(ref.id, created)))


@dataclass(frozen=True, slots=True)
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
        """Stores one fact; the first one opens the session. With a ``key`` once, whichever instances say it.

        ``row`` is that of a command, in place of a key of ours.

        Raises:
            StoreUnavailable: nothing is known to be written.
        """
        session = name_home(principal)
        ref = EntityRef(EntityKind.SESSION, session)
        # The fact changes no record, so that only this row tells a second try from a second fact (I2).
        name = hash_key(principal, key or self.writes.ids.mint("home", principal.home))
        row = row or IdempotencyRow(name, name, b"", _KEY_TTL_MS)

        def body(decision: Decision) -> Terms:
            open_home(decision, ref, principal)
            decision.add([Fact(Scope(session, trace_id=trace_id), payload)])
            return Terms(idem=row)

        await self.writes.decide(session, [ref], body)
