"""The calls about subagents. Most parameters are the command or query itself: its form is the documented one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from passerelle.core.principal import AccessScope
from passerelle.core.read_models.subagents import Subagent
from passerelle.core.subagent.requests import (
    GetSubagent,
    GetSubagentEvents,
    ListSubagents,
    SubagentEvents,
    SubagentList,
)
from passerelle.gateway.rpc.forms import SubagentEventsParams
from passerelle.gateway.rpc.paging import choose_position, choose_size
from passerelle.runtime.common.calls import MethodRow

_READ: Final = (AccessScope.READ_TASKS, AccessScope.OVERSEE_TASKS)

SUBAGENT_ROWS: Final[Sequence[MethodRow]] = (
    MethodRow(
        "list_subagents",
        "The contexts of agents that a task, a thread or a session has opened",
        _READ,
        ListSubagents,
        lambda given, _: given,
        model=SubagentList,
    ),
    MethodRow(
        "get_subagent",
        "One context of an agent, with its parent and its state",
        _READ,
        GetSubagent,
        lambda given, _: given,
        model=Subagent,
    ),
    MethodRow(
        "get_subagent_events",
        "What a context of an agent has lived through, in order",
        _READ,
        SubagentEventsParams,
        lambda given, _: GetSubagentEvents(
            given.subagent_id,
            choose_position(given.page_token, None),
            choose_size(given.page_size, None, 100),
        ),
        model=SubagentEvents,
    ),
)
