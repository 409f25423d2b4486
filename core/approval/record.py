"""The record of one question: what ``core/approval/machine.py`` folds out of the facts about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from passerelle.core.errors import ClosedState
from passerelle.core.facts import Scope
from passerelle.core.payloads.approval import (
    ApprovalDecision,
    ApprovalRequest,
    ClosingState,
    Option,
    Vote,
)
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record

SCHEMA: Final = 1

ActionState: TypeAlias = Literal["pending"] | ClosingState
ReturnState: TypeAlias = Literal["none", "owed", "returning", "returned", "undeliverable"]
DecisionDelivery: TypeAlias = Literal["none", "pending", "delivering", "delivered", "undeliverable"]
DELIVERY_STATES: Final[Mapping[ReturnState, DecisionDelivery]] = {
    "none": "none",
    "owed": "pending",
    "returning": "delivering",
    "returned": "delivered",
    "undeliverable": "undeliverable",
}
"""How callers read the way of a decision back to the agent; ``returnState`` is the older name of it."""


@record
class ActionRecord:
    """One question, its answer, and how far the answer is on its way back.

    ``rev`` counts what a reader sees: 1 when opened, one more when closed; the return does not move it.
    ``scope`` has the ids of the session, thread, turn, task, run and step that the question belongs to.
    ``first_seq`` and ``last_seq`` are the sequences of the first and the last event that changed the record;
    ``updated_at`` is the time of the latter, and so, while the answer is ``returning``, the time of the attempt.
    """

    schema: int
    request: ApprovalRequest
    scope: Scope
    state: ActionState
    rev: int
    updated_at: str
    first_seq: int
    last_seq: int
    decision: ApprovalDecision | None = None
    superseded_by: str | None = None
    return_state: ReturnState = "none"
    return_attempts: int = 0
    return_error: str | None = None
    consumed_at: str | None = None
    """When what was allowed was about to be done; only where no peer waits for the answer."""
    votes: tuple[Vote, ...] = ()
    step: int = 0
    """How far the audience has been widened; what widens it, like a vote, leaves ``rev`` alone."""
    seen: tuple[str, ...] = ()
    """Principals to whom it was shown while it was open."""

    @property
    def is_open(self) -> bool:
        """Whether an answer is still wanted."""
        return self.state == "pending"

    @property
    def closed_at(self) -> str:
        """When it was closed; while it is open, when it last changed."""
        return self.updated_at if self.decision is None else self.decision.decided_at

    @property
    def was_settled(self) -> bool:
        """Whether policy answered, and nobody was asked."""
        return self.decision is not None and self.decision.source.startswith("policy_")

    @property
    def closed_as(self) -> ClosedState | None:
        """What a late answer is told; None while it would not be late."""
        if self.state == "pending":
            return None
        if self.state == "expired" or self.state == "superseded":  # noqa: PLR1714  narrows for pyright
            return self.state
        # What a person cancelled was decided; what ended by itself was not.
        by_itself = self.decision is not None and self.decision.source == "system"
        return "cancelled" if self.state == "cancelled" and by_itself else "already_resolved"

    @property
    def cancels_task(self) -> bool:
        """Whether what goes back to the peer is CancelTask: chosen by a person, or owed by a timeout."""
        if self.decision is None or self.decision.source == "system":
            return False
        if self.state == "expired":
            return self.request.on_timeout != "reject"
        return self.state == "cancelled"

    def find_option(self, option_id: str) -> Option | None:
        """The option of that id, if the question offers it."""
        return next((o for o in self.request.options if o.option_id == option_id), None)

    def describe_winner(self) -> JsonObject:
        """Who closed it and how, for whoever comes late (I7); empty while it is open."""
        won = self.decision
        if won is None:
            return {}
        winner: JsonObject = {
            "outcome": won.outcome,
            "optionId": won.option_id,
            "decidedBy": won.decided_by,
            "deviceName": won.device_name,
            "decidedAt": won.decided_at,
        }
        return winner | ({"supersededBy": self.superseded_by} if self.superseded_by else {})
