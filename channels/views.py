"""The views of a stream: pure filters over stored entries.

``full`` shows every event, ``plain`` leaves out reasoning (EVC-7), ``task`` is the plain events of one task,
``unpaired`` is an inbox without events for paired devices only, ``packets`` are the inputs or results of a session,
``messages`` those of one thread, and ``rows`` those of one list. A filtered view has the cursor and the sequences of
its stream: gaps in the sequences are normal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

import orjson

from passerelle.core.agent_name import find_base
from passerelle.core.approval.paired_mark import is_for_paired
from passerelle.core.frozen import frozen
from passerelle.core.read_models.list_rows import JOB_ROW, TASK_ROW
from passerelle.core.read_models.packets import MESSAGE, PACKET

if TYPE_CHECKING:
    from passerelle.core.ports.log import Entry
    from passerelle.core.wire.json import JsonObject

_PAYLOAD: Final = b',"payload":'
_REASONING: Final = "reasoning."


@frozen
class FullView:
    """Every event of the stream."""


@frozen
class PlainView:
    """Every event without reasoning: the default for people."""


@frozen
class TaskView:
    """The plain events of one task, its attempts, actions and artifacts."""

    task: str


@frozen
class UnpairedView:
    """Every event of an inbox, except those for paired devices only."""


@frozen
class PacketView:
    """The packets of a session, without the other events of its stream."""


@frozen
class MessageView:
    """The messages of one thread, without the other events of its session's stream."""

    thread: str


@frozen
class TaskRowView:
    """Rows of tasks at these agents; None: at all agents."""

    agents: frozenset[str] | None


@frozen
class JobRowView:
    """Rows of jobs."""


View: TypeAlias = (
    FullView
    | PlainView
    | TaskView
    | UnpairedView
    | PacketView
    | MessageView
    | TaskRowView
    | JobRowView
)


def is_dense(view: View) -> bool:
    """Whether every sequence of the stream is in the view."""
    return isinstance(view, FullView)


def shows(view: View, entry: Entry) -> bool:
    """Whether ``entry`` is part of the view."""
    match view:
        case FullView():
            return True
        case PlainView():
            return not entry.type.startswith(_REASONING)
        case TaskView(task):
            return not entry.type.startswith(_REASONING) and read_task(entry.data) == task
        case UnpairedView():
            return not is_for_paired(entry.data)
        case PacketView():
            return entry.type.startswith(PACKET)
        case MessageView(thread):
            return entry.type == MESSAGE and orjson.loads(entry.data)["threadId"] == thread
        case TaskRowView(agents):
            return entry.type == TASK_ROW and (agents is None or _is_at(entry.data, agents))
        case JobRowView():
            return entry.type == JOB_ROW
        case _:
            assert_never(view)


def _is_at(data: bytes, agents: frozenset[str]) -> bool:
    row: JsonObject = orjson.loads(data)
    agent = row.get("agent")
    # The row of a removed task has no agent: every reader gets it.
    return not isinstance(agent, str) or agent in agents or find_base(agent) in agents


def read_task(data: bytes) -> str | None:
    """The ``taskId`` of an envelope, without decoding its payload."""
    task = read_header(data).get("taskId")
    return task if isinstance(task, str) else None


def read_header(data: bytes) -> JsonObject:
    """The members of an envelope before its payload, which is the last one.

    The cut is safe: inside a JSON string a quote is escaped, so no value can contain the separator.
    """
    end = data.find(_PAYLOAD)
    header: JsonObject = orjson.loads(data if end < 0 else data[:end] + b"}")
    return header
