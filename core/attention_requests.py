"""What people do about questions beside answering: see one, have an answer tried again, hear less of an agent."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from passerelle.core.record import record
from passerelle.core.task_requests import Id


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


MuteMinutes: TypeAlias = Annotated[int, Field(ge=1, le=480)]


@record
class MutePeer:
    """No pushes for what this agent asks, unless it is grave. It answers nothing, and everything is in the inbox."""

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
