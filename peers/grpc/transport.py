"""Calls over gRPC, of 1.0 (section 10) and of 0.3: converts between JSON and protobuf messages.

Protobuf drops unknown members and keeps numbers as doubles; so gRPC is chosen after the JSON bindings.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from passerelle.core.errors import PasserelleError, RemoteError
from passerelle.core.peer import Answered, Closed, RefusedByPeer, Unknown, Unreached
from passerelle.peers import answers
from passerelle.peers.call import LEASE_OVER, STREAMS
from passerelle.peers.grpc.channels import GrpcChannels, connect
from passerelle.peers.grpc.forms import FORMS, find_row
from passerelle.peers.grpc.status import DETAILS_KEY, parse_status, read_end
from passerelle.peers.grpc.wire import to_json, to_message
from passerelle.peers.http_client import EXTENSIONS_HEADER, write_carried, write_version
from passerelle.peers.stream_room import StreamRoom
from passerelle.runtime.common.carried import choose_extensions, note_confirmed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

    from passerelle.core.peer import PeerOutcome, StreamOutcome
    from passerelle.peers.call import PeerCall
    from passerelle.peers.config import PeerConfig
    from passerelle.peers.credential import PeerCredential, ShownCredential
    from passerelle.peers.grpc.forms import GrpcForm
    from passerelle.peers.grpc.methods import GrpcMethod
    from passerelle.peers.interface import Interface
    from passerelle.runtime.memory.room import MemoryAccount

_EXTENSIONS: Final = frozenset(name.lower() for name in EXTENSIONS_HEADER.values())


class GrpcTransport:
    """The calls of one peer over gRPC; see ``call.Transport``."""

    def __init__(
        self,
        config: PeerConfig,
        channels: GrpcChannels,
        credential: PeerCredential,
        bind: Callable[[str], MemoryAccount | None],
    ) -> None:
        """``bind`` returns the memory account for answers from an origin."""
        self._config = config
        self._channels = channels
        self._credential = credential
        self._bind = bind

    async def call(self, interface: Interface, call: PeerCall) -> PeerOutcome:
        last: PeerOutcome = Unreached("no call was made")
        async with aclosing(self._try(interface, call)) as outcomes:
            async for outcome in outcomes:
                if isinstance(outcome, Closed):
                    break
                last = outcome
        return last

    async def follow(
        self, interface: Interface, call: PeerCall
    ) -> AsyncGenerator[StreamOutcome, None]:
        async with aclosing(self._try(interface, call)) as outcomes:
            async for outcome in outcomes:
                passed = [outcome]
                del outcome
                yield passed.pop()

    async def _try(
        self, interface: Interface, call: PeerCall
    ) -> AsyncGenerator[StreamOutcome, None]:
        """Tries once more with another credential, if the first one was rejected before anything else."""
        try:
            for is_last in (False, True):
                shown = await self._credential.show()
                has_begun = False
                async with aclosing(self._exchange(interface, call, shown)) as outcomes:
                    async for outcome in outcomes:
                        refused = not has_begun and _is_unauthenticated(outcome)
                        if refused and not is_last and self._credential.renew(shown):
                            break
                        has_begun = True
                        passed = [outcome]
                        del outcome
                        yield passed.pop()
                if has_begun:
                    return
        except RemoteError as error:
            # Draining, or no credential: nothing was sent.
            yield Unreached(error.message)

    async def _exchange(
        self, interface: Interface, call: PeerCall, shown: ShownCredential
    ) -> AsyncGenerator[StreamOutcome, None]:
        form = FORMS[interface.version]
        row = find_row(form, call.operation)
        if row is None:
            yield RefusedByPeer(answers.METHOD_NOT_FOUND, f"0.3 has no {call.operation}")
            return
        channel = self._channels.open(interface.origin, self._config.tls)
        try:
            request = to_message(form.write(interface, call), row.request)
        except PasserelleError as error:
            yield RefusedByPeer(answers.INTERNAL_ERROR, error.message)
            return
        if not await connect(channel, self._config.connect_timeout_s):
            yield Unreached(f"no connection to {interface.url}")
            return
        headers = write_version(interface.version, choose_extensions(interface.extensions))
        headers |= write_carried(self._config, shown)
        metadata = tuple((name.lower(), value) for name, value in headers.items())
        if call.is_held_back:
            yield LEASE_OVER
            return
        pending = _start(channel, form, call, request, metadata)
        try:
            read = partial(_read, form, row, call, self._bind(interface.origin))
            async with aclosing(self._read_answers(pending, call, read)) as outcomes:
                async for outcome in outcomes:
                    passed = [outcome]
                    del outcome
                    yield passed.pop()
        except grpc.aio.AioRpcError as error:
            yield _read_error(error)
        except TimeoutError:
            yield Unknown("no answer in time")
        finally:
            pending.cancel()

    async def _read_answers(
        self,
        pending: Any,  # noqa: ANN401  generated code has no types
        call: PeerCall,
        read: Callable[[bytes], Awaitable[PeerOutcome]],
    ) -> AsyncGenerator[StreamOutcome, None]:
        if call.operation not in STREAMS:
            raw = await pending
            # Like response headers over HTTP; the Python SDK sends it after the answer.
            _note_activated(await pending.initial_metadata(), await pending.trailing_metadata())
            yield await read(raw)
            return
        has_begun = False
        while True:
            async with asyncio.timeout(self._config.idle_timeout_s):
                raw = await pending.read()
            if raw is grpc.aio.EOF:
                yield Closed()
                return
            if not has_begun:
                _note_activated(await pending.initial_metadata())
                has_begun = True
            outcome = await read(raw)
            del raw
            is_last, passed = not isinstance(outcome, Answered), [outcome]
            del outcome
            yield passed.pop()
            if is_last:
                return


async def _read(
    form: GrpcForm, row: GrpcMethod, call: PeerCall, account: MemoryAccount | None, raw: bytes
) -> PeerOutcome:
    """Reads a message once there is room for it: parsing needs more than its size again."""
    room = StreamRoom(account, len(raw), _ignore_preemption)
    try:
        await room.make(len(raw))
        answer = to_json(row.response.FromString(raw))
        return Answered(form.read(call, answer), hold=room.take(len(raw)))
    except DecodeError as error:
        return answers.reject(f"no {row.response.DESCRIPTOR.name}: {error}", raw)
    finally:
        room.close()


def _ignore_preemption() -> None:
    """A whole message is never preempted."""


def _start(
    channel: grpc.aio.Channel,
    form: GrpcForm,
    call: PeerCall,
    request: Message,
    metadata: tuple[tuple[str, str], ...],
) -> Any:  # noqa: ANN401  generated code has no types
    make: Any = channel.unary_stream if call.operation in STREAMS else channel.unary_unary
    invoke = make(
        f"/{form.service.name}/{form.name(call.operation)}",
        request_serializer=type(request).SerializeToString,
    )
    return invoke(request, timeout=call.timeout_s, metadata=metadata)


def _note_activated(*metadata: Iterable[tuple[str, str | bytes]]) -> None:
    for key, said in chain.from_iterable(metadata):
        if key in _EXTENSIONS and isinstance(said, str):
            note_confirmed(said)


def _read_error(error: grpc.aio.AioRpcError) -> PeerOutcome:
    packed = next((value for key, value in error.trailing_metadata() if key == DETAILS_KEY), None)
    rich = parse_status(packed) if isinstance(packed, bytes) else None
    return read_end(error.code().name, error.details() or "", rich)


def _is_unauthenticated(outcome: StreamOutcome) -> bool:
    return isinstance(outcome, RefusedByPeer) and outcome.http_status == HTTPStatus.UNAUTHORIZED
