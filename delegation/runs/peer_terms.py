"""What the configuration says of one agent, for those who send to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.core.facts import RetryPolicy
from passerelle.core.record import value
from passerelle.delegation.runs.patience import Patience
from passerelle.delegation.runs.volume import OutputLimits

if TYPE_CHECKING:
    from passerelle.core.json import JsonObject


@value
class PeerTerms:
    """The same object for every message, until another configuration or the end of the agent makes another one."""

    patience: Patience = Patience()
    """How long its messages may be on their way, and itself out of reach."""
    policy: RetryPolicy = RetryPolicy()
    """The terms of an attempt."""
    tags: frozenset[str] = frozenset()
    """Words of the operator's own."""
    acceptance: tuple[JsonObject, ...] = ()
    """What its tasks must bring; a task keeps what was wanted when it was made."""
    always_task: bool = False
    """Whether callers get a Task whatever it answers (LT-8)."""
    correlates: bool = False
    """Whether messages to it carry a key by which its tasks are found again."""
    await_approval: bool = False
    """Whether streams of messages to it stay open while an approval is waited for."""
    connect_ms: int = 0
    """How long a message waits for it where it dials in."""
    limits: OutputLimits = OutputLimits()
    """How much it may bring."""
