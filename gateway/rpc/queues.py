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
        "The waiting turns of a thread in order",
        (AccessScope.READ_TASKS,),
        GetTurnQueue,
        lambda given, _: given,
        model=TurnQueue,
    ),
    _change("promote_queued_turn", "Move a waiting turn to the front", PromoteQueuedTurn),
    _change("remove_queued_turn", "Remove a waiting turn; its task is cancelled", RemoveQueuedTurn),
    _change(
        "set_queue_policy",
        "Set the policy for messages to a thread that is working",
        SetQueuePolicy,
    ),
)
