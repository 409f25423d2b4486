"""The record of one approval: ``core/approval/machine.py`` folds it from the facts."""

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
"""The delivery of a decision as callers read it; ``returnState`` is the older name."""


@record
class ActionRecord:
    """One approval, its decision, and how far its delivery is.

    ``rev`` counts what a reader sees: 1 when opened, one more when closed; delivery does not change it. ``scope`` has
    the ids of session, thread, turn, task, run and step. ``first_seq`` and ``last_seq`` are the sequences of the first
    and the last event that changed the record; ``updated_at`` is the time of the last one, and so, while ``returning``,
    the time of the attempt.
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
    """When the allowed act was about to run; only if no agent waits for the decision."""
    votes: tuple[Vote, ...] = ()
    step: int = 0
    """The last audience step that has begun. Widening the audience and votes leave ``rev`` unchanged."""
    seen: tuple[str, ...] = ()
    """Principals that saw it while it was open."""

    @property
    def is_open(self) -> bool:
        """Whether it still takes an answer."""
        return self.state == "pending"

    @property
    def closed_at(self) -> str:
        """When it was closed; while it is open, when it last changed."""
        return self.updated_at if self.decision is None else self.decision.decided_at

    @property
    def was_settled(self) -> bool:
        """Whether policy answered and no approver was asked."""
        return self.decision is not None and self.decision.source.startswith("policy_")

    @property
    def closed_as(self) -> ClosedState | None:
        """The error code of a late answer; None while the approval is open."""
        if self.state == "pending":
            return None
        if self.state == "expired" or self.state == "superseded":  # noqa: PLR1714  narrows for pyright
            return self.state
        # A cancel by a person is a decision; an end without a decider is not.
        by_itself = self.decision is not None and self.decision.source == "system"
        return "cancelled" if self.state == "cancelled" and by_itself else "already_resolved"

    @property
    def cancels_task(self) -> bool:
        """Whether the delivery is CancelTask: chosen by a person, or due after a timeout."""
        if self.decision is None or self.decision.source == "system":
            return False
        if self.state == "expired":
            return self.request.on_timeout != "reject"
        return self.state == "cancelled"

    def find_option(self, option_id: str) -> Option | None:
        """The option of that id, if the approval offers it."""
        return next((o for o in self.request.options if o.option_id == option_id), None)

    def describe_winner(self) -> JsonObject:
        """Who closed it and how, for late answers (I7); empty while it is open."""
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
