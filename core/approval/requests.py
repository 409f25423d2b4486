"""Requests about approvals other than the answer: seen marks, delivery retries, mutes and audits.

An audit returns the facts of a decision with the data that proves them (CHN-14).
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from passerelle.core.task.requests import Id
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record


@record
class NoteSeen:
    """Record that the caller was shown an approval at this revision; it decides nothing."""

    action_id: Id
    rev: Annotated[int, Field(ge=1)]


@record
class SeenNoted:
    """Who has seen the approval so far."""

    action_id: str
    seen_by: tuple[str, ...]


@record
class ReturnAgain:
    """Retry the delivery of an undeliverable decision."""

    action_id: Id


@record
class ReturnOwed:
    """The delivery is pending again."""

    action_id: str
    return_state: str
    delivery: str


MuteMinutes: TypeAlias = Annotated[int, Field(ge=1, le=480)]


@record
class MutePeer:
    """Send no pushes for this agent's approvals, except at high risk. All of them stay in the inbox, undecided."""

    peer: Id
    minutes: MuteMinutes = 60


@record
class UnmutePeer:
    """Send pushes for this agent's approvals again; those held back come at the time that was announced."""

    peer: Id


@record
class PeerMuted:
    """Until when an agent is muted; None: it is not."""

    peer: str
    until: str | None


@record
class ListMutes:
    """The agents that the caller has muted."""


@record
class Mutes:
    """The muted agents, by the end of the mute."""

    mutes: tuple[PeerMuted, ...]


AttentionRequest: TypeAlias = NoteSeen | ReturnAgain | MutePeer | UnmutePeer
AttentionAnswer: TypeAlias = SeenNoted | ReturnOwed | PeerMuted


AUDIT_LIMIT = 500


@record
class GetAudit:
    """Recorded events of one approval; without one those of the caller's home: devices, grants, policy.

    The newest ``limit`` events, or the newest before the sequence ``before``.
    """

    action_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    limit: Annotated[int, Field(ge=1, le=AUDIT_LIMIT)] = 200
    before: Annotated[int, Field(ge=1)] | None = None


@record
class AuditedFact:
    """One stored event; ``sha256`` is the hash of its envelope bytes."""

    sequence: int
    sha256: str
    fact: JsonObject


@record
class AuditProof:
    """The stream of the events, and whether its chain is intact from the first kept event to its head.

    ``broken``: an event was removed, inserted or moved. ``trimmed``: events before ``first`` are no longer kept, so
    only the kept ones were verified.
    """

    session_id: str
    epoch: str
    first: int
    sequence: int
    chain: str
    state: Literal["whole", "trimmed", "broken"]


@record
class Audit:
    """Events in order, and the proof of their stream. The token leads to earlier ones, if ``more``."""

    facts: tuple[AuditedFact, ...]
    proof: AuditProof | None = None
    more: bool = False
    next_page_token: str = ""
