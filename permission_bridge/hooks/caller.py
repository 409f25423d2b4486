"""Calls one hook, in process or over HTTP, within its timeout, and validates its answer."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
from collections.abc import Awaitable, Callable
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias, cast

import orjson
from pydantic import Field

from passerelle.core.errors import ConfigInvalid, InvalidInput
from passerelle.core.facts import ErrorCategory, ErrorDetail
from passerelle.core.frozen import frozen
from passerelle.core.payloads.approval import Risk
from passerelle.core.wire.codec import from_bytes, from_wire
from passerelle.core.wire.display import explain_error
from passerelle.core.wire.json import JsonObject
from passerelle.core.wire.record import record
from passerelle.peers.origin import origin_of
from passerelle.peers.request_head import close_head, write_head
from passerelle.peers.sessions import PeerSessions
from passerelle.peers.whole_answer import ConnectionLost, NotConnected, NotReadable

if TYPE_CHECKING:
    from passerelle.permission_bridge.hook_terms import HookTerms


@record
class HookAnswer:
    """The answer of a hook; an empty object has no effect.

    ``message`` replaces the message that the hook was given, at points that allow it. ``risk`` is the classifier's
    rating.
    """

    verdict: Literal["silent", "allow", "ask", "deny"] = "silent"
    reason: Annotated[str, Field(max_length=500)] | None = None
    message: JsonObject | None = None
    risk: Risk | None = None


HookReply: TypeAlias = JsonObject | None
HookCallable: TypeAlias = Callable[[JsonObject], HookReply | Awaitable[HookReply]]

ANSWER_LIMIT_BYTES: Final = 1_048_576
_OK: Final = 200
_SILENT: Final = 204


def _open_sessions() -> PeerSessions:
    return PeerSessions(limit_bytes=ANSWER_LIMIT_BYTES)


@frozen
class HookCaller:
    """Calls hooks. The operator configures the endpoints, so their addresses are not screened."""

    sessions: PeerSessions = field(default_factory=_open_sessions)

    async def call(self, terms: HookTerms, given: JsonObject) -> HookAnswer | ErrorDetail:
        """Returns the hook's answer, or an ``ErrorDetail`` for every kind of failure."""
        try:
            async with asyncio.timeout(terms.timeout_ms / 1000):
                return await self._call(terms, given)
        except TimeoutError:
            return _fail(terms, "timeout", ErrorCategory.TIMEOUT, "it took too long")
        except NotReadable as wrong:
            why = "body: is too large" if wrong.too_long else str(wrong)
            return _fail(terms, "bad_answer", ErrorCategory.PROTOCOL, f"its answer: {why}")
        except InvalidInput as wrong:
            # What is wrong with the whole names its type, which means nothing to those who read it.
            is_whole = wrong.field == HookAnswer.__name__
            why = f" {wrong.reason}" if is_whole else f": {wrong}"
            return _fail(terms, "bad_answer", ErrorCategory.PROTOCOL, f"its answer{why}")
        except (NotConnected, ConnectionLost) as error:
            return _fail(terms, "unreachable", ErrorCategory.TRANSPORT, str(error))
        except OSError as error:
            return _fail(terms, "unreachable", ErrorCategory.TRANSPORT, explain_error(error))
        except Exception as error:  # noqa: BLE001  operator code: any exception counts as the hook's failure
            return _fail(terms, "raised", ErrorCategory.INTERNAL, type(error).__name__)

    async def _call(self, terms: HookTerms, given: JsonObject) -> HookAnswer:
        if terms.call is not None:
            return await _call_here(find_callable(terms.call), given)
        return await self._post(terms, given)

    async def _post(self, terms: HookTerms, given: JsonObject) -> HookAnswer:
        key = os.environ.get(terms.key_env) if terms.key_env else None
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        url, within_s = terms.url or "", terms.timeout_ms / 1000
        pool = self.sessions.pool(origin_of(url) or url, None)
        asked = close_head(write_head("POST", url, headers), orjson.dumps(given))
        reply = await pool.ask(asked, connect_s=within_s, total_s=within_s)
        if reply.status == _SILENT:
            return HookAnswer()
        if reply.status != _OK:
            raise InvalidInput("status", f"is {reply.status}")
        return from_bytes(HookAnswer, reply.raw)

    async def close(self) -> None:
        """Closes every connection."""
        await self.sessions.close()


@lru_cache(maxsize=256)
def find_callable(name: str) -> HookCallable:
    """The function that ``module:name`` refers to.

    Raises:
        ConfigInvalid: it cannot be imported or called.
    """
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigInvalid("policy.hooks", f"there is no {name!r}: {error}") from None
    if not callable(found):
        raise ConfigInvalid("policy.hooks", f"{name!r} cannot be called")
    return cast("HookCallable", found)


async def _call_here(function: HookCallable, given: JsonObject) -> HookAnswer:
    if inspect.iscoroutinefunction(function):
        answer = await function(given)
    else:
        # In a thread: a hook that blocks must not block the event loop.
        answer = await asyncio.to_thread(function, given)
        if inspect.isawaitable(answer):
            answer = await answer
    return HookAnswer() if answer is None else from_wire(HookAnswer, cast("JsonObject", answer))


def _fail(terms: HookTerms, code: str, category: ErrorCategory, why: str) -> ErrorDetail:
    return ErrorDetail(code, category, f"the hook {terms.name}: {why}", source=terms.name)
