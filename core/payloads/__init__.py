"""The payload of each normalized event class: one frozen type per class, one file per family.

``PAYLOADS`` is the closed list. JSON Schemas, docs and the codec are generated from these types; nothing else defines
an event.
"""

from __future__ import annotations

from typing import Final, TypeAlias, get_args

from passerelle.core.event_type import EventType
from passerelle.core.payloads.approval import ApprovalPayload
from passerelle.core.payloads.channel import ChannelPayload
from passerelle.core.payloads.context import ContextPayload
from passerelle.core.payloads.conversation import ConversationPayload
from passerelle.core.payloads.governance import GovernancePayload
from passerelle.core.payloads.history import HistoryPayload
from passerelle.core.payloads.job import JobPayload
from passerelle.core.payloads.limit import LimitPayload
from passerelle.core.payloads.process import ProcessPayload
from passerelle.core.payloads.reasoning import ReasoningPayload
from passerelle.core.payloads.routing import RoutingPayload
from passerelle.core.payloads.run import RunPayload
from passerelle.core.payloads.runtime import RuntimePayload
from passerelle.core.payloads.subagent import SubagentPayload
from passerelle.core.payloads.task import TaskPayload
from passerelle.core.payloads.tool import ToolPayload

Payload: TypeAlias = (
    ConversationPayload
    | TaskPayload
    | RunPayload
    | ReasoningPayload
    | ToolPayload
    | ContextPayload
    | SubagentPayload
    | ApprovalPayload
    | GovernancePayload
    | ProcessPayload
    | RoutingPayload
    | LimitPayload
    | ChannelPayload
    | JobPayload
    | HistoryPayload
    | RuntimePayload
)

PAYLOADS: Final[dict[EventType, type[Payload]]] = {kind.type: kind for kind in get_args(Payload)}
