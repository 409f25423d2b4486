"""The calls about turns that wait in a context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from passerelle.core.principal import AccessScope
from passerelle.core.session.requests import (
    GetTurnQueue,
    PromoteQueuedTurn,
    RemoveQueuedTurn,
    SetQueuePolicy,
    TurnQueue,
)
from passerelle.runtime.common.calls import MethodRow

if TYPE_CHECKING:
    from collections.abc import Sequence


def _change(name: str, summary: str, command: type[Any]) -> MethodRow:
    scopes = (AccessScope.WRITE_TASKS,)
    return MethodRow(name, summary, scopes, command, lambda given, _: given, TurnQueue)


QUEUE_ROWS: Final[Sequence[MethodRow]] = (
    MethodRow(
        "get_turn_queue",
        "The turns of a thread that wait, in order",
        (AccessScope.READ_TASKS,),
        GetTurnQueue,
        lambda given, _: given,
        model=TurnQueue,
    ),
    _change(
        "promote_queued_turn", "Have a turn that waits go before all others", PromoteQueuedTurn
    ),
    _change(
        "remove_queued_turn", "Take a turn out that waits; its task is cancelled", RemoveQueuedTurn
    ),
    _change(
        "set_queue_policy",
        "Say what becomes of messages to a thread while it works",
        SetQueuePolicy,
    ),
)
