"""The calls about sessions, threads and turns under way. Their parameters are the commands and queries themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from passerelle.core.principal import Scope
from passerelle.core.session_requests import (
    DescribeSession,
    InterruptTurn,
    ListSessions,
    OpenSession,
    ResumeThread,
    SessionChanged,
    ThreadResumed,
    TurnInterrupted,
)
from passerelle.gateway.rpc_call import Call


def _row(name: str, summary: str, params: type[Any], result: type[Any] | None = None) -> Call:
    scope = Scope.READ_TASKS if result is None else Scope.WRITE_TASKS
    return Call(name, summary, (scope,), params, lambda given, _: given, result)


SESSION_ROWS: Final[Sequence[Call]] = (
    _row("list_sessions", "The sessions of the caller, the newest activity first", ListSessions),
    _row("open_session", "Open a session with a name", OpenSession, SessionChanged),
    _row(
        "update_session", "Change the title or labels of a session", DescribeSession, SessionChanged
    ),
    _row("interrupt_turn", "Stop what is under way in a session", InterruptTurn, TurnInterrupted),
    _row("resume_thread", "Attach to the runs of a thread again", ResumeThread, ThreadResumed),
)
