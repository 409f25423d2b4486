"""Ids of subagents: a context that an agent has in a thread (ID-10).

An id reads ``sub_<body of the thread id>~<number>~<agent>``. So the thread is found by parsing the id: no fact or index
maps a subagent to its thread, and opening a context stores nothing extra. ``number`` counts the agent's contexts in the
thread, from 1: after a closed one the next begins. The ``/`` before the tenant of an agent is written ``:``, since an
id is used in paths.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from passerelle.core.agent_name import SEPARATOR

PREFIX: Final = "sub_"
LONGEST: Final = 200
"""Maximum characters of an id."""
_THREAD: Final = "th_"
_TENANT: Final = ":"
_ID: Final = re.compile(
    r"sub_([0-3][0-9a-f][0-9abcdefghjkmnpqrstvwxyz]{26})~([1-9][0-9]{0,8})~([A-Za-z0-9_][A-Za-z0-9._~:-]*)"
)


class SubagentName(NamedTuple):
    """A parsed id: the ``number``th context, from 1, of ``peer`` in a thread."""

    thread_id: str
    peer: str
    number: int = 1

    def __str__(self) -> str:
        body = self.thread_id.removeprefix(_THREAD)
        return f"{PREFIX}{body}~{self.number}~{self.peer.replace(SEPARATOR, _TENANT)}"


def parse_subagent(text: str) -> SubagentName | None:
    """The parsed id; None if the text is not a subagent id."""
    match = _ID.fullmatch(text) if len(text) <= LONGEST else None
    if match is None:
        return None
    return SubagentName(_THREAD + match[1], match[3].replace(_TENANT, SEPARATOR, 1), int(match[2]))
