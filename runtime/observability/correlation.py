"""What joins the lines of a log: the request that caused them, the trace that it belongs to, and the instance.

A run goes on in the task that its request began, so its lines name that request to its end. One that another instance
takes up has its trace and its own ids.
"""

from __future__ import annotations

from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Final

from passerelle.core.errors import PasserelleError
from passerelle.core.ids import encode_base32
from passerelle.runtime.common.carried import TRACE

if TYPE_CHECKING:
    import structlog

    from passerelle.core.ports.chance import Ids

REQUEST: Final[ContextVar[str | None]] = ContextVar("request", default=None)
INSTANCE: Final[ContextVar[str | None]] = ContextVar("instance", default=None)
"""Set at the start, so that everything which is begun afterwards has it."""
_RANDOM_BITS: Final = 40
_RANDOM_LETTERS: Final = 8


class Requests:
    """Names requests: a random beginning for this process, then a number, which costs next to nothing."""

    __slots__ = ("_beginning", "_numbers")

    def __init__(self, ids: Ids) -> None:
        self._beginning = encode_base32(ids.draw(_RANDOM_BITS), _RANDOM_LETTERS)
        self._numbers = count(1)

    def begin(self) -> None:
        """From here on, in this task and in what it starts, a new request is served."""
        REQUEST.set(f"req_{self._beginning}{next(self._numbers):x}")


def correlate(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Adds what is known of where a line comes from; what the line says itself stays."""
    trace = TRACE.get()
    for name, value in (
        ("request", REQUEST.get()),
        ("trace", trace.trace_id if trace else None),
        ("instance", INSTANCE.get()),
    ):
        if value is not None and event.get(name) is None:
            event[name] = value
    return event


def explain_fault(doing: str = "answer") -> PasserelleError:
    """What a caller is told of a fault of ours: nothing but where to look for it."""
    return PasserelleError(
        f"the gateway failed to {doing}; its log says why", request=REQUEST.get()
    )
