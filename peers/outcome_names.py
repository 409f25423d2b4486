"""The names that outcomes of calls to agents have in metrics and spans: a small closed set."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from passerelle.core.peer import Answered, Closed, Malformed, Refused, Unknown, Unreached

if TYPE_CHECKING:
    from passerelle.core.peer import StreamOutcome


def name_outcome(outcome: StreamOutcome) -> str:
    """What a call came to; ``breaker`` and ``limit`` were held back here, so the agent has not heard of them."""
    match outcome:
        case Answered() | Closed():
            return "answered"
        case Refused():
            return "refused"
        case Unreached(why=why):
            return "unreached" if why == "connection" else why
        case Unknown():
            return "unknown"
        case Malformed():
            return "malformed"
        case _:
            assert_never(outcome)
