"""A peer agent behind all interfaces of its card: calls use one, and try the next one only where that is safe.

The next interface is tried when a failure proves that nothing was accepted: no connection was made, the endpoint is
gone, or it does not speak the version. A call with an unknown outcome is never replayed.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from passerelle.a2a_mapping.enums import name_enums
from passerelle.a2a_mapping.members import object_at, text_at
from passerelle.core.errors import RemoteError
from passerelle.core.peer import Answered, Closed, RefusedByPeer, Unknown, Unreached
from passerelle.peers import answers
from passerelle.peers.call import SENDS, PeerCall
from passerelle.peers.guarded_transport import GuardedTransport
from passerelle.peers.limits import AT_ONCE, UNLIMITED, QueryLimit
from passerelle.peers.status import name_outcome
from passerelle.runtime.observability.spans import end_call

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping

    from opentelemetry.trace import Span

    from passerelle.core.peer import PeerCard, PeerOutcome, SendGuard, SendSlot, StreamOutcome
    from passerelle.core.ports.chance import Clock
    from passerelle.core.wire.json import JsonObject
    from passerelle.peers.call import Operation, Transport
    from passerelle.peers.card import KnownCard
    from passerelle.peers.cards import Cards
    from passerelle.peers.config import PeerConfig
    from passerelle.peers.interface import Interface, InterfaceKind
    from passerelle.peers.limits import SendLimit
    from passerelle.runtime.common.breaker import BreakerMode
    from passerelle.runtime.observability.spans import Spans

TriedInterfaces: TypeAlias = "list[Interface]"
"""Interfaces that a call has tried, in order."""
_GONE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.GONE})
_ANSWER: Final = Answered({})
_NO_INTERFACE: Final = RefusedByPeer(-32004, "no interface of the agent has the operation")


class AgentPeer:
    """One peer agent; ``core.peer.Peer`` describes the guarantees of its calls."""

    def __init__(
        self,
        config: PeerConfig,
        cards: Cards,
        transports: Mapping[InterfaceKind, Transport],
        limit: SendLimit,
        clock: Clock,
        count: Callable[[str, str], None],
        spans: Spans | None = None,
    ) -> None:
        """``transports``: a transport for each kind of interface.

        ``count(name, outcome)`` is called after each call.
        """
        self.name = config.name
        self._config = config
        self._cards = cards
        self._transports = transports
        self._limit = limit
        self._queries = QueryLimit(config.bounds.concurrency or AT_ONCE)
        self._clock = clock
        self._count = count
        self._spans = spans
        self._guarded: dict[Interface, GuardedTransport] = {}
        self._last: GuardedTransport | None = None
        self._unfit: set[Interface] = set()
        self._unfit_of = ""

    @property
    def config(self) -> PeerConfig:
        """Its configuration; a reload keeps a peer whose configuration is equal."""
        return self._config

    @property
    def cards(self) -> Cards:
        """The source of its card."""
        return self._cards

    async def describe(self) -> PeerCard:
        """The cached card, with the interface that the next call uses.

        Raises:
            PeerUnavailable: the card cannot be read, and has never been.
            InvalidAgentResponse: the card was read and is invalid; ``details`` name the fault.
        """
        return self.fresh or self._choose_interface(await self._cards.load())

    async def choose(self) -> Interface:
        """The interface that the next call uses.

        Raises:
            PeerUnavailable: as ``describe``.
            InvalidAgentResponse: as ``describe``.
        """
        return self._list_fit(await self._cards.load())[0]

    @property
    def fresh(self) -> PeerCard | None:
        known = self._cards.fresh
        return None if known is None else self._choose_interface(known)

    def _choose_interface(self, known: KnownCard) -> PeerCard:
        first = self._list_fit(known)[0] if self._unfit else known.interfaces[0]
        if first is known.interfaces[0]:
            return known.card
        return replace(known.card, endpoint=first.url, protocol=first.protocol, lists=first.lists)

    def peek(self) -> PeerCard | None:
        known = self._cards.known
        return known.card if known is not None else None

    def send(
        self,
        params: JsonObject,
        *,
        timeout_s: float | None = None,
        may_send: SendGuard | None = None,
        place: SendSlot | None = None,
    ) -> Coroutine[Any, Any, PeerOutcome]:
        total_s = self._config.total_timeout_s if timeout_s is None else timeout_s
        call = PeerCall("SendMessage", params, total_s, may_send)
        return self._call(call, self._limit, place)

    @property
    def has_slots(self) -> bool:
        """Whether the number of concurrent sends is limited, cluster-wide."""
        return self._limit.has_slots

    def reserve_now(self) -> SendSlot | None:
        """``reserve`` without asking the store; None does not mean that there is no slot."""
        return self._limit.reserve_now()

    async def reserve(self) -> SendSlot | None:
        """Reserves a slot for a send that is about to start; None: the limits allow none now."""
        return self._limit.reserve_now() or await self._limit.reserve()

    async def stream(
        self,
        params: JsonObject,
        *,
        may_send: SendGuard | None = None,
        place: SendSlot | None = None,
    ) -> AsyncGenerator[StreamOutcome, None]:
        held_back = None if place is not None and place.use() else await self._limit.enter()
        if held_back is not None:
            self._count(self.name, name_outcome(held_back))
            yield held_back
            return
        try:
            async with aclosing(self._follow("SendStreamingMessage", params, may_send)) as outcomes:
                async for outcome in outcomes:
                    passed = [outcome]
                    del outcome
                    yield passed.pop()
        finally:
            self._limit.leave()

    async def get(self, task: str, *, history_length: int | None = None) -> PeerOutcome:
        params: JsonObject = {"id": task}
        if history_length is not None:
            params["historyLength"] = history_length
        async with self._queries.ask():
            return await self._ask("GetTask", params)

    async def list(self, params: JsonObject) -> PeerOutcome:
        async with self._queries.ask():
            return await self._ask("ListTasks", params)

    async def subscribe(self, task: str) -> AsyncGenerator[StreamOutcome, None]:
        async with (
            self._queries.open() as place,
            aclosing(self._follow("SubscribeToTask", {"id": task})) as outcomes,
        ):
            async for outcome in outcomes:
                place.leave()
                passed = [outcome]
                del outcome
                yield passed.pop()

    async def cancel(self, task: str) -> PeerOutcome:
        return await self._ask("CancelTask", {"id": task})

    async def register_push(self, task: str, config: JsonObject) -> PeerOutcome:
        async with self._queries.ask():
            return await self._ask("CreateTaskPushNotificationConfig", {**config, "taskId": task})

    @property
    def rests(self) -> bool:
        """Whether a send would be rejected now by the breaker of every interface that was used."""
        for guarded in self._guarded.values():
            if guarded.admits:
                return False
        return bool(self._guarded)

    @property
    def is_full(self) -> bool:
        """Whether the limits would reject a send, as far as this instance knows."""
        return self._limit.is_used_up

    def list_breakers(self) -> dict[str, BreakerMode]:
        """The breaker mode of each interface that was used."""
        return {interface.choice: guarded.mode for interface, guarded in self._guarded.items()}

    async def read_extended_card(self) -> PeerOutcome:
        """GetExtendedAgentCard: the card that the agent shows to authenticated callers."""
        return await self._ask("GetExtendedAgentCard", {})

    async def _ask(self, operation: Operation, params: JsonObject) -> PeerOutcome:
        call = PeerCall(operation, params, self._config.query_timeout_s)
        return await self._call(call, UNLIMITED)

    async def _call(
        self, call: PeerCall, limit: SendLimit, place: SendSlot | None = None
    ) -> PeerOutcome:
        has_place = (place is not None and place.use()) or limit.enter_now()
        if not has_place and (held_back := await limit.enter()) is not None:
            self._count(self.name, name_outcome(held_back))
            return held_back
        outcome: PeerOutcome = _NO_INTERFACE
        span = None
        try:
            if self._spans:
                span = self._begin_span(self._spans, call)
            tried: TriedInterfaces = []
            while True:
                known = self._cards.fresh or await self._cards.load()
                guarded = self._choose(known, call, tried)
                if guarded is None:
                    break
                outcome = _read(await guarded.call(call), call.operation)
                if isinstance(outcome, Answered) or not self._may_try_next(guarded, call, outcome):
                    break
                tried.append(guarded.interface)
        except RemoteError as error:
            # Without a card nothing was sent.
            outcome = Unreached(error.message)
        finally:
            limit.leave()
            if span is not None:
                end_call(span, _describe_end(outcome))
        if outcome is not _NO_INTERFACE:
            self._count(self.name, name_outcome(outcome))
        return outcome

    def _begin_span(self, spans: Spans, call: PeerCall) -> Span:
        conversation = text_at(object_at(call.params, "message"), "contextId")
        return spans.begin_call(self.name, call.operation, conversation)

    async def _follow(
        self, operation: Operation, params: JsonObject, may_send: SendGuard | None = None
    ) -> AsyncGenerator[StreamOutcome, None]:
        call = PeerCall(operation, params, self._config.total_timeout_s, may_send)
        last: StreamOutcome | None = None
        span = self._begin_span(self._spans, call) if self._spans else None
        try:
            tried: TriedInterfaces = []
            while (guarded := self._choose(await self._cards.load(), call, tried)) is not None:
                has_begun = False
                async with aclosing(guarded.follow(call)) as outcomes:
                    async for one in outcomes:
                        outcome = one if isinstance(one, Closed) else _read(one, operation)
                        del one
                        last = _ANSWER if isinstance(outcome, Answered) else outcome
                        if not has_begun and self._may_try_next(guarded, call, outcome):
                            break
                        has_begun = True
                        passed = [outcome]
                        del outcome
                        yield passed.pop()
                if has_begun:
                    return
                tried.append(guarded.interface)
        except RemoteError as error:
            last = Unreached(error.message)
        finally:
            if span is not None:
                end_call(span, _describe_end(last))
            if last is not None:
                self._count(self.name, name_outcome(last))
        yield last or _NO_INTERFACE

    def _choose(
        self, known: KnownCard, call: PeerCall, tried: TriedInterfaces
    ) -> GuardedTransport | None:
        """The best untried interface. The card is loaded each time: a failed interface may not have fitted its card."""
        for interface in self._list_fit(known) if self._unfit else known.interfaces:
            if interface not in tried and (call.operation != "ListTasks" or interface.lists):
                last = self._last
                return last if last and last.interface is interface else self._open(interface)
        return None

    def _list_fit(self, known: KnownCard) -> tuple[Interface, ...]:
        """The interfaces not found unfit under this card; all of them if none is left."""
        if self._unfit_of != known.card.sha256:
            self._unfit.clear()
        fit = tuple(one for one in known.interfaces if one not in self._unfit)
        if not fit:
            self._unfit.clear()
        return fit or known.interfaces

    def _mark_unfit(self, interface: Interface) -> None:
        known = self._cards.known
        sha256 = known.card.sha256 if known is not None else ""
        if self._unfit_of != sha256:
            self._unfit, self._unfit_of = set(), sha256
        self._unfit.add(interface)

    def _open(self, interface: Interface) -> GuardedTransport:
        guarded = self._guarded.get(interface)
        if guarded is None:
            transport = self._transports[interface.choice]
            guarded = self._guarded[interface] = GuardedTransport(
                self.name, interface, transport, self._probe, self._clock
            )
        self._last = guarded
        return guarded

    async def _probe(self) -> bool:
        self._cards.expire()
        return not (await self._cards.load()).card.stale

    def _may_try_next(
        self, guarded: GuardedTransport, call: PeerCall, outcome: StreamOutcome
    ) -> bool:
        """Whether the outcome proves that nothing was accepted, and is a fault of this interface."""
        match outcome:
            case Unreached(why="lease"):
                return False
            case Unreached():
                return True
            case RefusedByPeer(code=answers.VERSION_NOT_SUPPORTED):
                pass
            case RefusedByPeer(code=answers.INTERNAL_ERROR, http_status=status) if status in _GONE:
                # Agents without streams may lack this one path; the interface works all the same.
                if call.operation == "SubscribeToTask":
                    return False
            case _:
                return False
        # An endpoint that is gone or speaks another version should have a new card.
        self._mark_unfit(guarded.interface)
        self._cards.expire()
        return True


def _describe_end(outcome: StreamOutcome | None) -> str:
    """The outcome of a call for its span; "left" if the caller stopped waiting before there was one."""
    if outcome is _NO_INTERFACE:
        return "no_interface"
    return "left" if outcome is None else name_outcome(outcome)


def _read(outcome: PeerOutcome, operation: Operation) -> PeerOutcome:
    """An outcome of an operation, as everything else reads it."""
    if isinstance(outcome, Answered):
        name_enums(outcome.result)
    elif isinstance(outcome, Unknown) and operation in SENDS:
        return answers.judge_send(outcome)
    return outcome
