"""What can be told to a question; ``core/approval/machine.py`` says when each is allowed and what it does.

There is no command for a lost connection, a closed app, a drain or a restart: those decide nothing (I6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from passerelle.core.facts import Scope
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


@dataclass(frozen=True, slots=True)
class OpenAction:
    """Asks. ``scope`` names what the question belongs to; its action id is filled in."""

    request: ApprovalRequest
    scope: Scope


@dataclass(frozen=True, slots=True)
class AnswerAction:
    """Answers (CMD-14). ``who`` is the authenticated principal, never a name out of a body.

    ``rev`` and ``digest`` say what was read. Without ``option_id`` the one option that takes an answer is meant.
    ``turn_id`` is set where the answer came as a message to the task: the turn then gives the decision its id,
    and no other answer may name a turn.
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
    """Whether it is the policy of a host, and so for whomever (CMD-21)."""
    rights: DeviceRights = EVERYTHING
    """What the device may say that it comes from."""
    signature: DecisionSignature | None = None
    """Verified by whoever made this."""
    must_sign: bool = False
    """Whether a yes to something of this risk takes a signature here."""
    native: JsonObject | None = None
    """The answer as it was given in the agent's own form, which the agent is sent in place of ours."""
    void: frozenset[str] = frozenset()
    """Devices whose votes do not count any more: they were revoked since."""


@dataclass(frozen=True, slots=True)
class WithdrawVotes:
    """Votes that came from a device which is revoked are taken back."""

    devices: frozenset[str]


@dataclass(frozen=True, slots=True)
class SeeAction:
    """The question was shown to a principal, at this revision. To have seen something decides nothing."""

    who: Principal
    rev: int


@dataclass(frozen=True, slots=True)
class Escalate:
    """Nobody has decided in time: the principals of step ``step`` may decide as well."""

    step: int


@dataclass(frozen=True, slots=True)
class SettleAction:
    """Policy answers in nobody's place; it comes in the append that opens the question, so nobody is asked."""

    allows: bool
    cause: PolicyCause
    grant_id: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumeAction:
    """What was allowed is about to be done, here and once; ``evaluation`` is how policy judges it by now."""

    evaluation: PermissionEvaluated
    digest: str


@dataclass(frozen=True, slots=True)
class Expire:
    """The time is over by the store's clock, which reads ``at_ms``; without it the time of ``decide`` counts."""

    at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CancelAction:
    """Nobody waits for the answer any more."""

    cause: CancelCause


@dataclass(frozen=True, slots=True)
class SupersedeAction:
    """The peer asks something else instead; ``by`` is the action that opens in the same append."""

    by: str


@dataclass(frozen=True, slots=True)
class BeginReturn:
    """An attempt to tell the asking side begins: stored before anything is sent."""


@dataclass(frozen=True, slots=True)
class FinishReturn:
    """The asking side has the answer; ``native_status`` is its state since then."""

    native_status: str


@dataclass(frozen=True, slots=True)
class FailReturn:
    """The answer cannot be delivered any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class RetryReturn:
    """Somebody wants an undeliverable answer tried again."""


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
"""What may come to a question that was opened."""
ActionCommand: TypeAlias = OpenAction | FurtherCommand
