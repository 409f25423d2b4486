"""Calls to an agent over the socket it dialled in with; see ``peers.call.Transport``.

If no socket of the agent is on this instance, the call is ``Unreached`` with ``absent``: it was not made, and the
driver releases the run to an instance that has one. If a socket ends during a call, the outcome is unknown.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, assert_never

from passerelle.a2a_mapping.members import whole_at
from passerelle.channels.reverse_link import (
    AnswersBroken,
    AnswersEnded,
    AskRefused,
    ItemReceived,
    SocketEnded,
)
from passerelle.core.peer import Answered, Closed, Malformed, RefusedByPeer, Unknown, Unreached
from passerelle.peers import answers
from passerelle.peers.call import LEASE_OVER, SENDS, STREAMS
from passerelle.peers.credential import show_fixed
from passerelle.peers.http_client import write_carried, write_version
from passerelle.runtime.common.carried import choose_extensions

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    from passerelle.channels.reverse_link import OpenCall
    from passerelle.core.peer import PeerOutcome, StreamOutcome
    from passerelle.peers.call import PeerCall
    from passerelle.peers.config import PeerConfig
    from passerelle.peers.interface import Interface
    from passerelle.peers.reverse.local import LinkedAgent, LocalLinks
    from passerelle.protocol.reverse_frames import Failed

WINDOW: Final = 32
"""Items of one call that may be in transit to the store."""
_WORK: Final = SENDS | STREAMS
_RETRY_S: Final = 1
_BUSY: Final = 503


class ChannelTransport:
    """The calls of one agent. ``cancel(agent, task)`` notifies other instances that a task is to stop."""

    def __init__(
        self,
        config: PeerConfig,
        links: LocalLinks,
        cancel: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._config = config
        self._links = links
        self._cancel = cancel

    async def call(self, interface: Interface, call: PeerCall) -> PeerOutcome:
        served = self._find(call)
        if isinstance(served, Unreached):
            if call.operation == "CancelTask" and served.why == "absent":
                await self._cancel(self._config.name, str(call.params.get("id")))
            return served
        with self._open(served, interface, call) as opened:
            try:
                async with asyncio.timeout(call.timeout_s):
                    item = await opened.receive()
            except TimeoutError:
                return Unknown("no answer in time")
        match item:
            case AnswersEnded(data=data):
                return Answered(data)
            case ItemReceived():
                return Malformed("an item in place of an answer", b"")
            case _:
                return _read_failure(item)

    async def follow(
        self, interface: Interface, call: PeerCall
    ) -> AsyncGenerator[StreamOutcome, None]:
        served = self._find(call)
        if isinstance(served, Unreached):
            yield served
            return
        with self._open(served, interface, call) as opened:
            try:
                # The socket has its own heartbeat, so a silent stream is no failure.
                async with asyncio.timeout(call.timeout_s):
                    while isinstance(item := await opened.receive(), ItemReceived):
                        outcome = Answered(item.data, opened.release)
                        del item
                        passed = [outcome]
                        del outcome
                        yield passed.pop()
            except TimeoutError:
                yield Unknown("no answer in time")
                return
        if isinstance(item, AnswersEnded):
            if item.data:
                yield Answered(item.data)
            yield Closed()
        else:
            yield _read_failure(item)

    def _find(self, call: PeerCall) -> LinkedAgent | Unreached:
        served = self._links.choose(self._config.name)
        if served is None or served.link.is_cut:
            return Unreached("it is not linked to this instance", _RETRY_S, "absent")
        if call.operation in _WORK and served.working >= served.most:
            reason = f"it takes at most {served.most} calls at once, and all are in use"
            return Unreached(reason, _RETRY_S, "limit")
        return LEASE_OVER if call.is_held_back else served

    @contextmanager
    def _open(
        self, served: LinkedAgent, interface: Interface, call: PeerCall
    ) -> Generator[OpenCall]:
        headers = write_version(interface.version, choose_extensions(interface.extensions))
        headers |= write_carried(self._config, show_fixed(None))
        work = int(call.operation in _WORK)
        opened = served.link.open(
            self._config.name,
            call.operation,
            call.params,
            headers,
            deadline_ms=int(call.timeout_s * 1000),
            window=WINDOW,
        )
        served.working += work
        try:
            yield opened
        finally:
            served.working -= work
            opened.abandon()


def _read_failure(
    item: AskRefused | AnswersBroken | SocketEnded | AnswersEnded | ItemReceived,
) -> PeerOutcome:
    match item:
        case AskRefused(failure):
            return read_refusal(failure)
        case AnswersBroken(reason, too_long=True):
            return Malformed(reason, b"", too_long=True)
        case AnswersBroken(reason):
            return Unknown(reason)
        case SocketEnded():
            return Unknown("the agent's socket has ended")
        case AnswersEnded() | ItemReceived():
            return Malformed("an unexpected answer", b"")
        case _:
            assert_never(item)


def read_refusal(failure: Failed) -> RefusedByPeer | Unknown | Malformed | PeerOutcome:
    """The outcome of an agent's ``err``: the call was not accepted, or that is unknown."""
    data = failure.data or {}
    match failure.code, data:
        case "busy", _:
            return RefusedByPeer(
                answers.INTERNAL_ERROR, failure.message, _BUSY, failure.retry_s or 1
            )
        case "a2a", {"code": int() as code}:
            message = failure.message[: answers.MESSAGE_CHARS]
            status = whole_at(data, "status") or answers.OK
            details = answers.list_given(data.get("data"))
            return RefusedByPeer(code, message, status, failure.retry_s, details)
        case "status", {"status": int() as status}:
            wait = None if failure.retry_s is None else str(failure.retry_s)
            return answers.read_bare_status(status, wait, failure.message.encode())
        case "failed", {"tooLong": True}:
            return Malformed(failure.message[: answers.MESSAGE_CHARS], b"", too_long=True)
        case _:
            return Unknown(f"{failure.code}: {failure.message}"[: answers.MESSAGE_CHARS])
