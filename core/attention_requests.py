"""What people do about a question beside answering it: see it, and have an answer tried again that did not arrive."""

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


AttentionRequest: TypeAlias = NoteSeen | ReturnAgain
AttentionAnswer: TypeAlias = SeenNoted | ReturnOwed
