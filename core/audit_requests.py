"""What can be asked about how something came to be decided: the facts themselves, with what proves them (CHN-14)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from passerelle.core.json import JsonObject
from passerelle.core.record import record

AUDIT_LIMIT = 500


@record
class GetAudit:
    """All facts about one question; without one the newest of the caller's home: devices, grants, policy."""

    action_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    limit: Annotated[int, Field(ge=1, le=AUDIT_LIMIT)] = 200


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
    """Facts in their order, and the proof of their stream. ``more``: there are more than were asked for."""

    facts: tuple[AuditedFact, ...]
    proof: AuditProof | None = None
    more: bool = False
