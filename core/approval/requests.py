"""Requests about questions beside an answer: attention, mutes, and audits.

People see a question, have an answer tried again, or hear less of an agent. An audit asks how something came to be
decided: it has the facts themselves, with what proves them (CHN-14).
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from passerelle.core.task.requests import Id
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record


@record
class NoteSeen:
    """A question was shown to the caller, at this revision; it decides nothing."""

    action_id: Id
    rev: Annotated[int, Field(ge=1)]


@record
class SeenNoted:
    """Who has seen the question by now."""

    action_id: str
    seen_by: tuple[str, ...]


@record
class ReturnAgain:
    """An answer that could not be delivered is to be tried again."""

    action_id: Id


@record
class ReturnOwed:
    """It is owed again, and will be tried."""

    action_id: str
    return_state: str
    delivery: str


MuteMinutes: TypeAlias = Annotated[int, Field(ge=1, le=480)]


@record
class MutePeer:
    """No pushes for what this agent asks, except at high risk. It answers nothing, and everything is in the inbox."""

    peer: Id
    minutes: MuteMinutes = 60


@record
class UnmutePeer:
    """Pushes for what this agent asks from now on; what was held back comes at the time that it was told."""

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
    """The agents that are muted now, those that end first at the top."""

    mutes: tuple[PeerMuted, ...]


AttentionRequest: TypeAlias = NoteSeen | ReturnAgain | MutePeer | UnmutePeer
AttentionAnswer: TypeAlias = SeenNoted | ReturnOwed | PeerMuted


AUDIT_LIMIT = 500


@record
class GetAudit:
    """Recorded events of one approval; without one those of the caller's home: devices, grants, policy.

    The newest ``limit`` ones, or the newest before the sequence ``before``.
    """

    action_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    limit: Annotated[int, Field(ge=1, le=AUDIT_LIMIT)] = 200
    before: Annotated[int, Field(ge=1)] | None = None


@record
class AuditedFact:
    """One stored fact as it stands; ``sha256`` is that of the bytes of its envelope."""

    sequence: int
    sha256: str
    fact: JsonObject


@record
class AuditProof:
    """The stream in which the facts stand, and whether its chain holds from its first kept event to its head.

    ``broken``: an event was removed, put in or moved. ``trimmed``: what came before ``first`` is not kept any more, so
    only what is kept was checked.
    """

    session_id: str
    epoch: str
    first: int
    sequence: int
    chain: str
    state: Literal["whole", "trimmed", "broken"]


@record
class Audit:
    """Facts in their order, and the proof of their stream. The token leads to earlier ones, if ``more``."""

    facts: tuple[AuditedFact, ...]
    proof: AuditProof | None = None
    more: bool = False
    next_page_token: str = ""
