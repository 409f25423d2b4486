"""The commands of an approval; ``core/approval/machine.py`` states when each is allowed and what it does.

There is no command for a lost connection, a closed app, a drain or a restart: those decide nothing (I6).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from passerelle.core.facts import Scope
from passerelle.core.frozen import frozen
from passerelle.core.payloads.approval import (
    ApprovalRequest,
    DecisionSignature,
    PermissionEvaluated,
)
from passerelle.core.payloads.device import EVERYTHING, DeviceRights
from passerelle.core.principal import Principal
from passerelle.core.wire.json import JsonObject

CancelCause: TypeAlias = Literal[
    "task_cancelled", "asker_withdrew", "asker_lost", "peer_terminal", "peer_moved_on"
]

PolicyCause: TypeAlias = Literal[
    "integrity", "rule", "hook", "grant", "mode", "default", "unavailable"
]


@frozen
class OpenAction:
    """Opens an approval. ``scope`` has the ids that it belongs to; the action id is filled in."""

    request: ApprovalRequest
    scope: Scope


@frozen
class AnswerAction:
    """Answers (CMD-14). ``who`` is the authenticated principal, never a name from the request body.

    ``rev`` and ``digest`` name what the caller read. Without ``option_id`` it answers the one option that takes
    content. ``turn_id`` is set if the answer came as a message to the task: then the decision has the id of that turn,
    which no other answer may use.
    """

    who: Principal
    rev: int
    digest: str
    decision_id: str
    option_id: str | None = None
    content: JsonObject | None = None
    comment: str | None = None
    turn_id: str | None = None
    is_host: bool = False
    """Whether the policy of a host answers, for any owner of its tenant (CMD-21)."""
    rights: DeviceRights = EVERYTHING
    """What the device that sent the answer may choose."""
    signature: DecisionSignature | None = None
    """Verified by the caller of this module."""
    must_sign: bool = False
    """Whether allowing something of this risk requires a signature here."""
    native: JsonObject | None = None
    """The answer in the agent's own form; the agent gets it instead of the gateway's form."""
    void: frozenset[str] = frozenset()
    """Devices that were revoked: their votes do not count."""


@frozen
class WithdrawVotes:
    """Takes back the votes that came from a revoked device."""

    devices: frozenset[str]


@frozen
class SeeAction:
    """The approval was shown to a principal at this revision. This decides nothing."""

    who: Principal
    rev: int


@frozen
class Escalate:
    """No decision in time: the principals of ``step`` may decide as well."""

    step: int


@frozen
class SettleAction:
    """Policy answers in the append that opens the approval, so no approver is asked."""

    allows: bool
    cause: PolicyCause
    grant_id: str | None = None


@frozen
class ConsumeAction:
    """The allowed act is about to run, here and once; ``evaluation`` is the policy decision of this moment."""

    evaluation: PermissionEvaluated
    digest: str


@frozen
class Expire:
    """The approval expired by the store's clock, which reads ``at_ms``; without it the time of ``decide`` counts."""

    at_ms: int | None = None


@frozen
class CancelAction:
    """The asking side no longer waits for the answer."""

    cause: CancelCause


@frozen
class SupersedeAction:
    """The agent asks something else; ``by`` is the action that opens in the same append."""

    by: str


@frozen
class BeginReturn:
    """Begins an attempt to deliver the decision: stored before anything is sent."""


@frozen
class FinishReturn:
    """The asking side has the decision; ``native_status`` is its state since then."""

    native_status: str


@frozen
class FailReturn:
    """The decision can no longer be delivered."""

    reason: str


@frozen
class RetryReturn:
    """Retries an undeliverable decision on request."""


FurtherCommand: TypeAlias = (
    AnswerAction
    | WithdrawVotes
    | SeeAction
    | Escalate
    | SettleAction
    | ConsumeAction
    | Expire
    | CancelAction
    | SupersedeAction
    | BeginReturn
    | FinishReturn
    | FailReturn
    | RetryReturn
)
"""The commands of an open or closed approval."""
ActionCommand: TypeAlias = OpenAction | FurtherCommand
