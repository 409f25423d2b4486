"""Structured logs: an event is a short noun with ids, and a secret prints as ``***``.

Lines go to standard error: JSON, or coloured text on a terminal. Records of libraries (uvicorn, asyncio) pass the
same processors. Secrets are detected in three ways: by type, by key name, and by pattern.

Lines contain the request that caused them, its trace, and the instance. A run continues in the task that its request
started, so its lines have that request id to its end. A run taken over by another instance has its trace and its own
ids.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO, TypeAlias, cast

import orjson
import structlog

from passerelle.core.errors import PasserelleError
from passerelle.core.ids import encode_base32
from passerelle.runtime.common.carried import TRACE
from passerelle.runtime.common.secret import MASK

if TYPE_CHECKING:
    from passerelle.core.ports.chance import Ids

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
LogFormat: TypeAlias = Literal["auto", "json", "console"]

_SECRET_KEY: Final = re.compile(
    r"token|authorization|secret|password|passwd|credential|cookie|api[-_]?key|bearer",
    re.IGNORECASE,
)
_SECRET_SHAPE: Final = re.compile(
    r"(?P<scheme>\bbearer\s+)\S+|\bpsr_[0-9a-z]+|(?P<at>://)[^/@\s]+(?=@)", re.IGNORECASE
)
_DEPTH_LIMIT: Final = 6
_REFUSED_SOCKET: Final = "ASGI callable returned without completing handshake."
_LIBRARIES: Final = ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "aiohttp", "redis")


def configure_logs(level: LogLevel, form: LogFormat, stream: TextIO | None = None) -> None:
    """Configures structlog and the logging module; a second call replaces the first."""
    out = sys.stderr if stream is None else stream
    render = _choose_renderer(form, out)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        correlate,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
        redact,
    ]
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(out),
        # A cached logger would keep writing to the stream of an earlier configuration.
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.addFilter(_is_news)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    _route_libraries(handler, number)


def redact(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Masks secrets, also in nested values."""
    return {key: _mask(key, value, _DEPTH_LIMIT) for key, value in event.items()}


def _mask(key: str, value: object, depth: int) -> object:
    if value is not None and _SECRET_KEY.search(key):
        return MASK
    if value is None or isinstance(value, (int, float)):
        return value
    if depth == 0 and isinstance(value, (Mapping, list, tuple, set, frozenset)):
        return "…"
    if isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value)
        return {str(k): _mask(str(k), v, depth - 1) for k, v in members.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_mask("", item, depth - 1) for item in cast("list[object]", value)]
    return _SECRET_SHAPE.sub(_cover, str(value))


def _cover(match: re.Match[str]) -> str:
    return f"{match['scheme'] or match['at'] or ''}{MASK}"


def _choose_renderer(form: LogFormat, out: TextIO) -> structlog.typing.Processor:
    if form == "console" or (form == "auto" and out.isatty()):
        return structlog.dev.ConsoleRenderer(
            colors=out.isatty(),
            # The other formatters print local variables, and with them secrets.
            exception_formatter=structlog.dev.plain_traceback,
        )
    return structlog.processors.JSONRenderer(serializer=_dump)


def _is_news(record: logging.LogRecord) -> bool:
    """Drops uvicorn's message about a refused WebSocket: our HTTP response has answered it."""
    return record.msg != _REFUSED_SOCKET


def _dump(event: object, **_options: Callable[[Any], Any]) -> str:
    return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _route_libraries(handler: logging.Handler, level: int) -> None:
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))
    for name in _LIBRARIES:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.disabled = False
        logger.setLevel(logging.NOTSET)


REQUEST: Final[ContextVar[str | None]] = ContextVar("request", default=None)
INSTANCE: Final[ContextVar[str | None]] = ContextVar("instance", default=None)
"""Set at start, so that all later tasks inherit it."""
_RANDOM_BITS: Final = 40
_RANDOM_LETTERS: Final = 8


class Requests:
    """Numbers requests: a random prefix for this process, then a counter, which costs next to nothing."""

    __slots__ = ("_beginning", "_numbers")

    def __init__(self, ids: Ids) -> None:
        self._beginning = encode_base32(ids.draw(_RANDOM_BITS), _RANDOM_LETTERS)
        self._numbers = count(1)

    def begin(self) -> None:
        """Starts a new request id in this task and in tasks that it starts."""
        REQUEST.set(f"req_{self._beginning}{next(self._numbers):x}")


def correlate(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Adds request, trace and instance to a line; fields that the line has are kept."""
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
    """The error for an internal fault: it only names the request to look for in the log."""
    return PasserelleError(
        f"the gateway failed to {doing}; its log says why", request=REQUEST.get()
    )
