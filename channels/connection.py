"""One connection: the shell around its machine. It owns the socket and every task of the connection.

A back-end calls it with what comes in, and it writes without awaiting, so an idle connection has no task but those that
its streams need. What the machine wants is carried out here, what comes of it is fed back; nothing is decided.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, assert_never
from zlib import crc32

import structlog

from passerelle.channels import session
from passerelle.channels.admission import Admission, admit, identify, show
from passerelle.channels.closing import CloseCode, fit_reason
from passerelle.channels.failures import end_connection, refuse_call
from passerelle.channels.frames import (
    Answer,
    AskSnapshot,
    Call,
    Failure,
    Hello,
    Refusal,
    ShowPresence,
    Subscribe,
    Unsubscribed,
)
from passerelle.channels.inputs import (
    AckJudged,
    Admitted,
    Answered,
    DrainAsked,
    Ended,
    Input,
    Left,
    Received,
    Renewed,
    Ticked,
    Told,
    Undecodable,
)
from passerelle.channels.outbox import Outbox
from passerelle.channels.outputs import (
    Admit,
    Close,
    Execute,
    NotePresence,
    Open,
    Output,
    Reauthenticate,
    Release,
    Send,
    Serve,
    StoreAcks,
    TakeSnapshot,
)
from passerelle.channels.presence import OwnPresence
from passerelle.channels.reverse_link import AgentLink
from passerelle.channels.reverse_side import AgentSide
from passerelle.channels.services import parse_stream_name
from passerelle.channels.session import Phase
from passerelle.channels.story import LinkStory
from passerelle.channels.subscription import Subscription, name_ack
from passerelle.channels.telling import Telling
from passerelle.channels.wire import decode_client, encode_server, split_message
from passerelle.core.errors import (
    CallerError,
    PasserelleError,
    RemoteError,
    StoreUnavailable,
    Unauthenticated,
)
from passerelle.core.principal import Principal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from passerelle.channels.cursor import Cursor
    from passerelle.channels.limits import Limits
    from passerelle.channels.presence import PresenceBoard
    from passerelle.channels.reverse_frames import AgentFrame
    from passerelle.channels.roster import Roster
    from passerelle.channels.services import ChannelServices, Grant
    from passerelle.channels.transport import Socket
    from passerelle.core.credentials import Credentials
    from passerelle.core.ports import AckResult

_DECIDES: Final = "respond_action"
_CRC_END: Final = 2**32
_DRAIN_FLUSH_S: Final = 1.0
"""The same for the last frames while an instance ends: who took nothing until then has had its time."""
_FLUSH_S: Final = 5.0
"""How long the last frames, the close and the last acks may take on a socket that takes nothing."""


class Connection:
    """Serves one accepted socket until it ends; ``on_end`` is told when all that it did is done."""

    __slots__ = (
        "_acks",
        "_admission",
        "_agent",
        "_board",
        "_closing",
        "_credentials",
        "_ending",
        "_frames",
        "_is_paused",
        "_left",
        "_loop",
        "_on_end",
        "_owner",
        "_presence",
        "_recheck_timer",
        "_rechecking",
        "_roster",
        "_socket",
        "_state",
        "_story",
        "_subscriptions",
        "_tasks",
        "_telling",
        "_timer",
        "limits",
        "outbox",
        "services",
    )

    def __init__(
        self,
        socket: Socket,
        services: ChannelServices,
        limits: Limits,
        credentials: Credentials,
        roster: Roster,
        board: PresenceBoard,
        on_end: Callable[[Connection], None],
    ) -> None:
        self.services = services
        self.limits = limits
        self.outbox = Outbox(socket, limits.buffered_bytes, limits.stall_s, self._give_up)
        self._admission: Admission | None = None
        self._socket = socket
        self._credentials = credentials
        self._roster = roster
        self._board = board
        self._presence = OwnPresence(services.presences)
        self._on_end = on_end
        self._owner = ""
        self._loop = asyncio.get_running_loop()
        self._state = session.start(limits, self._loop.time())
        self._frames: list[bytes | Refusal] = []
        self._is_paused = False
        self._left = False
        self._subscriptions: dict[str, tuple[Subscription, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._acks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._recheck_timer: asyncio.TimerHandle | None = None
        self._rechecking: asyncio.Task[None] | None = None
        self._closing: Close | None = None
        self._ending: asyncio.Task[None] | None = None
        self._story: LinkStory | None = None
        self._agent: AgentSide | None = None
        self._telling = Telling(services.links)
        self._schedule()

    @property
    def channel(self) -> str:
        """The channel that this connection is of; empty before the welcome."""
        return self._admission.channel if self._admission else ""

    @property
    def generation(self) -> int:
        """Which connection of the channel this is; 0 before the welcome."""
        return self._admission.generation if self._admission else 0

    @property
    def principal(self) -> Principal:
        """Who is at the other end."""
        return self._known.principal

    @property
    def _known(self) -> Admission:
        if self._admission is None:
            raise AssertionError("nothing is followed or called before the welcome")
        return self._admission

    def feed(self, given: Input) -> None:
        """Gives the machine an input and carries out what follows."""
        if self._story is not None and isinstance(given, Told):
            self._telling.tell(self._known, self._story.take(given), self._spawn)
        self._state, outputs = session.step(self._state, given, self._loop.time())
        for output in outputs:
            self._carry_out(output)
        if self._state.phase is Phase.CLOSED and self._ending is None:
            self._ending = self._loop.create_task(self._end())
        if self._is_paused and not self._must_wait:
            self._loop.call_soon(self._take_frames)
        self._schedule()

    def can(self, capability: str) -> bool:
        """Whether both sides have a capability."""
        return capability in self._known.welcome.capabilities

    def find_lag(self) -> int:
        """How many events the furthest of its streams is behind."""
        return max((one.lag for one, _ in self._subscriptions.values()), default=0)

    def name_device(self, stream: str, grant: Grant) -> str:
        """The field of a stream's acks: a task's view never moves the ack of its session."""
        return name_ack(self._known.device, stream, grant)

    async def claim(self, stream: str, grant: Grant) -> bool:
        """Writes our generation beside the ack, so that an older connection can move it no more."""
        result = await self._write_ack(stream, grant, "")
        if result == "stale_generation":
            self.feed(AckJudged(stream, result))
        return result != "stale_generation"

    def _carry_out(self, output: Output) -> None:  # noqa: C901, PLR0912 - one arm per output of the closed union
        match output:
            case Send(frame):
                self.outbox.put(encode_server(frame))
            case Admit(hello):
                self._spawn(self._admit(hello))
            case Reauthenticate(token):
                self._spawn(self._renew(token))
            case Open(ask):
                self._subscribe(ask)
            case Release(stream):
                self._release(stream)
            case TakeSnapshot(ask):
                self._take_snapshot(ask)
            case StoreAcks(cursors):
                self._store_acks(cursors)
            case Execute(call):
                self._spawn(self._call(call))
            case Serve(frame):
                self._serve_agent(frame)
            case NotePresence(said):
                if self._presence.put(said):
                    self._spawn(self._say_presence())
            case Close():
                self._closing = output
            case _:
                assert_never(output)

    # Socket

    def take_message(self, message: str | bytes) -> None:
        """One message of the client."""
        if self._is_over:
            return
        if not isinstance(message, str):
            self._refuse_message(CloseCode.MALFORMED, "malformed", "text messages only")
        elif len(message) > self.limits.inbound_bytes:
            self._refuse_message(CloseCode.FRAME_TOO_LARGE, "too_large", "message too large")
        else:
            self._take_lines(split_message(message))

    def take_room(self) -> None:
        """The socket is writable again."""
        self.outbox.take_room()

    def take_end(self, *, left: bool) -> None:
        """The socket is gone."""
        self._left = self._left or left
        self.outbox.drop()
        self.feed(Left())

    @property
    def _is_over(self) -> bool:
        return self._state.phase is Phase.CLOSED

    @property
    def _must_wait(self) -> bool:
        return self._state.phase is Phase.ADMITTING or self._state.is_saturated

    def _take_lines(self, frames: list[bytes]) -> None:
        most = self.limits.frames_per_message
        if len(frames) > most:
            self._frames.append(Refusal("too_many_frames", f"at most {most} a message"))
        else:
            self._frames += frames
        self._take_frames()

    def _take_frames(self) -> None:
        """Takes what was read, as far as the machine takes it now; then TCP slows the client down."""
        taken = 0
        while taken < len(self._frames) and not self._must_wait and not self._is_over:
            line = self._frames[taken]
            taken += 1
            for subscription, _ in self._subscriptions.values():
                subscription.note_delivered()
            frame = decode_client(line) if isinstance(line, bytes) else line
            if isinstance(frame, Refusal | Failure):
                self.feed(Undecodable(frame))
            else:
                self.feed(Received(frame, self._read_reached()))
        del self._frames[:taken]
        self._slow_down()

    def _slow_down(self) -> None:
        """Reads no more while something waits. A socket that is not read says nothing of its end, so not before that.

        The end of a socket that is still being admitted has to be seen: its device has come back, and counts anew.
        """
        if self._frames and not self._is_paused:
            self._is_paused = True
            self._socket.pause()
        elif self._is_paused and not self._frames:
            self._is_paused = False
            self._socket.resume()

    def _refuse_message(self, code: CloseCode, word: str, reason: str) -> None:
        self.feed(Ended(code, Refusal(word, reason, fatal=True)))

    def _give_up(self) -> None:
        self.outbox.drop()
        self.services.counts.slow += 1
        self.feed(Ended(CloseCode.TOO_SLOW))

    async def _end(self) -> None:
        """What is left to do once nothing more is taken: the last frames and the close, the last facts and acks."""
        for timer in (self._timer, self._recheck_timer):
            if timer is not None:
                timer.cancel()
        self._roster.leave(self._owner, self)  # first: its device comes back, and is counted
        self._frames.clear()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        drains = self._closing is not None and self._closing.code is CloseCode.DRAIN
        try:
            async with asyncio.timeout(_DRAIN_FLUSH_S if drains else _FLUSH_S):
                await self.outbox.finish()
            closing = self._closing or Close(CloseCode.NORMAL, "")
            self._socket.close(closing.code, fit_reason(closing.reason))
        except TimeoutError:
            self.outbox.drop()
            self._socket.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._agent is not None:
            await self._agent.end()
        self._board.leave(self._owner, self)
        await self._withdraw()
        if self._story is not None:
            code = self._closing.code if self._closing else None
            over = self._story.end(code, left=self._left)
            await self._telling.finish(self._known, over, _FLUSH_S)
        if self._acks:
            await asyncio.wait(self._acks, timeout=_FLUSH_S)
        self._subscriptions.clear()  # they know this connection, and would wait for the collector with it
        self._on_end(self)

    def _schedule(self) -> None:
        due_s = session.next_tick_s(self._state)
        if self._timer is not None:
            if self._timer.when() <= due_s and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = None if self._is_over else self._loop.call_at(due_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.feed(Ticked())

    # Admission

    async def _admit(self, hello: Hello) -> None:
        try:
            self._credentials = await show(self.services, hello, self._credentials)
            principal = await identify(self.services, self._credentials)
            self._owner = principal.key
            await self._roster.enter(self._owner, hello.device, self)
            admission = await admit(self.services, self.limits, hello, principal)
        except PasserelleError as error:
            self.feed(Ended(*end_connection(error, "hello")))
            return
        self._admission = admission
        self._roster.install(self._owner, self)
        self._story = LinkStory(admission.continues, hello.subscriptions)
        self._telling.tell(admission, self._story.begin(), self._spawn)
        self.feed(Admitted(admission.welcome, self._find_end_s(principal)))
        self._recheck_later()

    # Rights

    def _recheck_later(self) -> None:
        """Connections that came together are not looked at together: each has a time of its own around the interval."""
        if not self._is_over:
            spread = 0.75 + 0.5 * (crc32(self.channel.encode()) / _CRC_END)
            after_s = self.limits.recheck_s * spread
            self._recheck_timer = self._loop.call_later(after_s, self.recheck)

    def recheck(self) -> None:
        """Looks at credential and rights now: at intervals, and when who may come in has changed."""
        if self._admission is None or self._is_over or self._rechecking is not None:
            return
        if self._recheck_timer is not None:
            self._recheck_timer.cancel()
        self._rechecking = self._spawn(self._recheck_once())

    async def _recheck_once(self) -> None:
        """Notices a newer connection of this device, a credential that has fallen, and rights that have changed."""
        try:
            with suppress(RemoteError):  # asked again at the next round
                if not await self._recheck_caller():
                    return
                if await self._is_superseded():
                    self.supersede()
                    return
                await self._recheck_rights()
        finally:
            self._rechecking = None
        self._recheck_later()

    async def _is_superseded(self) -> bool:
        services = self.services
        driver = services.links.find_driver(self._owner)
        newest = await services.channels.keep(self.channel, self.generation, driver)
        return newest > self.generation

    async def _recheck_caller(self) -> bool:
        """Whether the credential still opens this channel; what it may do is what it may do now.

        One that has run out is the machine's business: it may still be renewed.
        """
        known = self._known
        ends_ms = known.principal.expires_ms
        if ends_ms is not None and ends_ms <= self.services.clock.now_ms():
            return True
        try:
            principal = await identify(self.services, self._credentials)
            if principal.key != self._owner:
                raise Unauthenticated("the credential is somebody else's now")
        except CallerError as error:
            self.feed(Ended(*end_connection(error, "auth", admitted=True)))
            return False
        self._admission = replace(known, principal=principal)
        return True

    async def _renew(self, token: str) -> None:
        """Takes a new credential of the same principal; any other one ends the connection."""
        shown = replace(self._credentials, bearer=token)
        try:
            found = await identify(self.services, shown)
        except PasserelleError as error:
            self.feed(Ended(*end_connection(error, "auth")))
            return
        if found.key != self._owner:
            notice = Refusal("unauthenticated", "another principal", "auth", fatal=True)
            self.feed(Ended(CloseCode.BAD_CREDENTIALS, notice))
            return
        self._credentials, self._admission = shown, replace(self._known, principal=found)
        self.feed(Renewed(self._find_end_s(found)))

    def _find_end_s(self, principal: Principal) -> float | None:
        """The end of a credential by the clock of the loop."""
        if principal.expires_ms is None:
            return None
        left_ms = principal.expires_ms - self.services.clock.now_ms()
        return self._loop.time() + left_ms / 1000

    async def _recheck_rights(self) -> None:
        if self._agent is not None:
            self._agent.recheck()
        for stream, (subscription, _) in tuple(self._subscriptions.items()):
            if subscription.grant is None:
                continue
            try:
                held = await self.services.access.grant(
                    self.principal, parse_stream_name(stream), full=subscription.ask.full
                )
            except CallerError:
                held = None
            if held != subscription.grant:
                self._release(stream)
                self.feed(Told(Unsubscribed(stream, "forbidden")))

    def supersede(self) -> None:
        """Ends this connection because the same device and tab has a newer one."""
        self.services.counts.takeovers += not self._is_over
        notice = Refusal("superseded", "a newer connection has this device", fatal=True)
        self.feed(Ended(CloseCode.SUPERSEDED, notice))

    def show_presence(self, shown: ShowPresence) -> None:
        """Tells the client who is there."""
        self.feed(Told(shown))

    def drain(self, within_ms: int, jitter_ms: int) -> None:
        """Tells the client to go elsewhere."""
        self.feed(DrainAsked(within_ms, jitter_ms))

    # Who sits before it

    async def _say_presence(self) -> None:
        """Whoever has spoken is shown who is there, itself among them."""
        await self._presence.write(self._known)
        self._board.watch(self._owner, self)

    async def _withdraw(self) -> None:
        """Nobody sits before this connection any more; where that cannot be said it is forgotten in time."""
        if self._admission is not None:
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(_FLUSH_S):
                    await self._presence.withdraw(self._admission)

    # Agents that dial in

    def _serve_agent(self, frame: AgentFrame) -> None:
        if self._agent is None:
            self._agent = self._begin_serving()
        if self._agent is None:
            refusal = Refusal("unsupported", "no agents are served over channels here", frame.TAG)
            self.feed(Undecodable(refusal))
        else:
            self._agent.take(frame)

    def _begin_serving(self) -> AgentSide | None:
        host = self.services.agents
        if host is None:
            return None
        link = AgentLink(
            self._known.welcome.connection, lambda frame: self.outbox.put(encode_server(frame))
        )
        return AgentSide(
            host,
            link,
            lambda: self.principal,
            lambda refusal: self.feed(Undecodable(refusal)),
            self._spawn,
        )

    # Streams and calls

    def _subscribe(self, ask: Subscribe) -> None:
        older = self._subscriptions.get(ask.stream)
        subscription = Subscription(self, ask)
        task = self._spawn(self._follow(subscription, older[1] if older else None))
        self._subscriptions[ask.stream] = (subscription, task)

    async def _follow(self, subscription: Subscription, older: asyncio.Task[None] | None) -> None:
        if older is not None:
            older.cancel()
            await asyncio.wait([older])
        await subscription.run()

    def _release(self, stream: str) -> None:
        held = self._subscriptions.pop(stream, None)
        if held is not None:
            held[1].cancel()

    def _read_reached(self) -> Mapping[str, Cursor]:
        return {
            stream: reached
            for stream, (subscription, _) in self._subscriptions.items()
            if (reached := subscription.reached) is not None
        }

    def _take_snapshot(self, ask: AskSnapshot) -> None:
        held = self._subscriptions.get(ask.stream)
        if held is not None and held[0].grant is not None:
            self._spawn(held[0].answer_snapshot(ask, held[0].grant))

    def _store_acks(self, cursors: Mapping[str, Cursor]) -> None:
        if self._story is not None:
            self._story.note_acks(cursors)
        for stream, cursor in cursors.items():
            held = self._subscriptions.get(stream)
            if held is not None and held[0].grant is not None:
                task = asyncio.create_task(self._store_ack(stream, held[0].grant, cursor))
                self._acks.add(task)
                task.add_done_callback(self._acks.discard)

    async def _store_ack(self, stream: str, grant: Grant, cursor: Cursor) -> None:
        with suppress(StoreUnavailable):  # the client still has its cursor, and acks the next one
            result = await self._write_ack(stream, grant, str(cursor))
            self.services.counts.acks[result] += 1
            self.feed(AckJudged(stream, result))

    async def _write_ack(self, stream: str, grant: Grant, cursor: str) -> AckResult:
        services, device = self.services, self.name_device(stream, grant)
        return await services.acks.store_ack(
            grant.stream, device, self.generation, cursor, services.clock.now_ms()
        )

    async def _call(self, call: Call) -> None:
        """Carries out a call; a socket that a newer one has replaced decides nothing (CHN-9)."""
        try:
            if call.method == _DECIDES and await self._is_superseded():
                self.supersede()
                return
            data = await self.services.calls.call(self.principal, call.method, call.data, call.idem)
            answer: Answer | Failure = Answer(call.id, data)
        except PasserelleError as error:
            answer = refuse_call(call.id, error)
        except Exception as error:  # noqa: BLE001  one call that fails must not end the streams beside it
            structlog.get_logger().error(
                "channel.fault",
                method=call.method,
                call=call.id,
                connection=self._known.welcome.connection,
                exc_info=error,
            )
            fault = PasserelleError("the gateway failed to answer; its log says why")
            answer = refuse_call(call.id, fault)
        self.feed(Answered(answer))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            structlog.get_logger().error("channel.fault", channel=self.channel, exc_info=error)
            self.feed(Ended(CloseCode.RESTART))
