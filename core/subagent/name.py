"""Ids of subagents: a context that an agent has in one of our threads (ID-10).

An id reads ``sub_<body of the thread id>~<number>~<agent>``. So it is found by reading it: no fact and no index leads
from a subagent to its thread, and a message that opens a context stores nothing more for it. ``number`` counts the
contexts that the agent has had in the thread, from 1: one that is closed is followed by another one. The ``/`` before
the tenant of an agent is a ``:``, since an id stands in paths.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from passerelle.core.agent_name import SEPARATOR

PREFIX: Final = "sub_"
LONGEST: Final = 200
"""Characters of an id."""
_THREAD: Final = "th_"
_TENANT: Final = ":"
_ID: Final = re.compile(
    r"sub_([0-3][0-9a-f][0-9abcdefghjkmnpqrstvwxyz]{26})~([1-9][0-9]{0,8})~([A-Za-z0-9_][A-Za-z0-9._~:-]*)"
)


class SubagentName(NamedTuple):
    """What an id says: the ``number``th context, from 1, that ``peer`` has in a thread."""

    thread_id: str
    peer: str
    number: int = 1

    def __str__(self) -> str:
        body = self.thread_id.removeprefix(_THREAD)
        return f"{PREFIX}{body}~{self.number}~{self.peer.replace(SEPARATOR, _TENANT)}"


def parse_subagent(text: str) -> SubagentName | None:
    """What an id says; None for a text that is no id of a subagent."""
    match = _ID.fullmatch(text) if len(text) <= LONGEST else None
    if match is None:
        return None
    return SubagentName(_THREAD + match[1], match[3].replace(_TENANT, SEPARATOR, 1), int(match[2]))
