"""One connection: the shell around its state machine. It owns the socket and all tasks of the connection.

The transport calls it with received data, and it writes without awaiting, so an idle connection has no tasks except
those of its streams. It carries out the outputs of the state machine and feeds the results back; it decides nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, assert_never

import structlog

from passerelle.channels.ack_writer import AckWriter
from passerelle.channels.calls import end_connection, execute_call, refuse_call
from passerelle.channels.holder import HolderRights
from passerelle.channels.inputs import (
    Admitted,
    CallAnswered,
    DrainAsked,
    EndRequested,
    EventsDelivered,
    Input,
    NoticeDue,
    Received,
    SocketGone,
    Ticked,
    Undecodable,
)
from passerelle.channels.intake import Intake
from passerelle.channels.outbox import Outbox
from passerelle.channels.outputs import (
    Admit,
    Ask,
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
from passerelle.channels.reverse_asks import AskingSide
from passerelle.channels.reverse_link import AgentLink
from passerelle.channels.reverse_side import AgentSide
from passerelle.channels.session import step
from passerelle.channels.session_state import ConnectionPhase, start
from passerelle.channels.session_time import next_tick_s
from passerelle.channels.story import LinkFactWriter, LinkStory
from passerelle.channels.subscriptions import Subscriptions
from passerelle.core.errors import PasserelleError, StoreUnavailable, UnknownMethod
from passerelle.protocol.closing import CloseCode, fit_reason
from passerelle.protocol.frames import Call, ClientBeat, Hello, Refusal, ShowPresence
from passerelle.protocol.wire import encode_server

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from passerelle.channels.admission_queue import AdmissionQueue
    from passerelle.channels.limits import ChannelLimits
    from passerelle.channels.presence import PresenceBoard
    from passerelle.channels.roster import Roster
    from passerelle.channels.services import ChannelServices
    from passerelle.channels.transport import Socket
    from passerelle.core.credentials import Credentials
    from passerelle.core.principal import Principal
    from passerelle.protocol.cursor import Cursor
    from passerelle.protocol.frames import ClientFrame
    from passerelle.protocol.reverse_frames import AnswerPiece, AskingFrame, ServingFrame

_DECIDES: Final = "respond_action"
_FORGOTTEN: Final = "your data was erased here: start again, and pair your devices again"
_DRAIN_FLUSH_S: Final = 1.0
"""The flush timeout while the instance shuts down: a client that did not read until then had time enough."""
_FLUSH_S: Final = 5.0
"""Timeout for the last frames, the close and the last acks on a socket that accepts no data."""


class ChannelConnection:
    """Serves one accepted socket until it ends; ``on_end`` is called when all its work is done."""

    __slots__ = (
        "_admissions",
        "_agent",
        "_asking",
        "_board",
        "_closing",
        "_ending",
        "_intake",
        "_left",
        "_link_facts",
        "_loop",
        "_on_end",
        "_presence",
        "_rights",
        "_roster",
        "_socket",
        "_state",
        "_story",
        "_subscriptions",
        "_tasks",
        "_timer",
        "acks",
        "limits",
        "outbox",
        "services",
    )

    def __init__(
        self,
        socket: Socket,
        services: ChannelServices,
        limits: ChannelLimits,
        credentials: Credentials,
        admissions: AdmissionQueue,
        roster: Roster,
        board: PresenceBoard,
        on_end: Callable[[ChannelConnection], None],
    ) -> None:
        self.services = services
        self.limits = limits
        self.outbox = Outbox(socket, limits.buffered_bytes, limits.stall_s, self._give_up)
        self._rights = HolderRights(services, limits, credentials, self)
        self.acks = AckWriter(services, self._rights, self.feed)
        self._intake = Intake(socket, limits, self)
        self._subscriptions = Subscriptions(self)
        self._socket = socket
        self._admissions = admissions
        self._roster = roster
        self._board = board
        self._presence = OwnPresence(services.presences)
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._state = start(limits, self._loop.time())
        self._left = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closing: Close | None = None
        self._ending: asyncio.Task[None] | None = None
        self._story: LinkStory | None = None
        self._agent: AgentSide | None = None
        self._asking: AskingSide | None = None
        self._link_facts = LinkFactWriter(services.links)
        self._schedule()

    @property
    def channel(self) -> str:
        """The channel of this connection; empty before the welcome."""
        admission = self._rights.admission
        return admission.channel if admission else ""

    @property
    def generation(self) -> int:
        """The connection's number within the channel; 0 before the welcome."""
        admission = self._rights.admission
        return admission.generation if admission else 0

    @property
    def principal(self) -> Principal:
        """The authenticated principal."""
        return self._rights.known.principal

    @property
    def is_over(self) -> bool:
        """Whether the connection is closed."""
        return self._state.phase is ConnectionPhase.CLOSED

    @property
    def must_wait(self) -> bool:
        """Whether no frames are processed now."""
        if self._agent is not None and self._agent.waits:
            return True
        return self._state.phase is ConnectionPhase.ADMITTING or self._state.is_saturated

    def feed(self, given: Input) -> None:
        """Feeds an input to the state machine and carries out its outputs; ignored once the connection ends."""
        if self._ending is not None:
            return
        if self._story is not None and isinstance(given, NoticeDue):
            facts = self._story.take(given)
            if facts:
                self._link_facts.add(self._rights.known, facts)
        self._state, outputs = step(self._state, given, self._loop.time())
        for output in outputs:
            self._execute(output)
        if isinstance(given, NoticeDue | EventsDelivered):
            return  # these inputs end nothing, admit nothing, and move no deadline
        if self.is_over and self._ending is None:
            self._ending = self._loop.create_task(self._end())
        self._read_on()
        self._schedule()

    def _read_on(self) -> None:
        if self._intake.waits and not self.must_wait:
            self._loop.call_soon(self._intake.go_on)

    def receive(self, frame: ClientFrame) -> None:
        """Processes a frame of the client, after the deliveries before it."""
        self._subscriptions.note_delivered()
        if isinstance(frame, ClientBeat):
            self.feed(Received(frame, self._subscriptions.read_reached()))
        else:
            self.feed(Received(frame))

    def can(self, capability: str) -> bool:
        """Whether both sides support a capability."""
        return capability in self._rights.known.welcome.capabilities

    def find_lag(self) -> int:
        """The lag of its slowest stream, in events."""
        return self._subscriptions.lag

    def _execute(self, output: Output) -> None:  # noqa: C901, PLR0912 - one arm per output of the closed union
        match output:
            case Send(frame):
                self.outbox.put(encode_server(frame))
            case Admit(hello):
                self.spawn(self._admit(hello))
            case Reauthenticate(token):
                self.spawn(self._rights.renew(token))
            case Open(ask):
                self._subscriptions.open(ask)
            case Release(stream):
                self._subscriptions.release(stream)
            case TakeSnapshot(ask):
                self._subscriptions.answer_snapshot(ask)
            case StoreAcks(cursors):
                self._store_acks(cursors)
            case Execute(call):
                self.spawn(self._call(call))
            case Serve(frame):
                self._serve_agent(frame)
            case Ask(frame):
                self._ask_agents(frame)
            case NotePresence(said):
                if self._presence.put(said):
                    self.spawn(self._write_presence())
            case Close():
                self._closing = output
            case _:
                assert_never(output)

    # Socket

    def take_message(self, message: str | bytes) -> None:
        """One message of the client."""
        self._intake.take_message(message)

    def take_room(self) -> None:
        """The socket is writable again."""
        self.outbox.take_room()

    def take_end(self, *, left: bool) -> None:
        """The socket is closed."""
        self._left = self._left or left
        self.outbox.drop()
        self.feed(SocketGone())

    def _give_up(self) -> None:
        self.outbox.drop()
        self.services.counts.slow += 1
        self.feed(EndRequested(CloseCode.TOO_SLOW))

    # End

    async def _end(self) -> None:
        """Sends the last frames and the close, then stores the last facts and acks."""
        if self._timer is not None:
            self._timer.cancel()
        self._rights.stop()
        owner = self._rights.owner
        self._roster.leave(owner, self)  # first: its device may reconnect, and is counted
        self._intake.drop()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await self._close_socket()
        if tasks:
            await asyncio.wait(tasks)
        if self._agent is not None:
            await self._agent.end()
        self._board.leave(owner, self)
        await self._withdraw()
        if self._story is not None:
            code = self._closing.code if self._closing else None
            over = self._story.end(code, left=self._left)
            await self._link_facts.finish(self._rights.known, over, _FLUSH_S)
        await self.acks.finish(_FLUSH_S)
        self._on_end(self)
        self._drop_parts()

    def _drop_parts(self) -> None:
        """Drops the references between the parts, so that no garbage collection is needed."""
        self._subscriptions.clear()
        self.outbox.drop()
        del self._intake, self._rights, self._subscriptions, self._agent, self._asking
        del self.acks, self.outbox

    async def _close_socket(self) -> None:
        closing = self._closing or Close(CloseCode.NORMAL, "")
        try:
            await self._finish_writing(drains=closing.code is CloseCode.DRAIN)
            self._socket.close(closing.code, fit_reason(closing.reason))
        except TimeoutError:
            self.outbox.drop()
            self._socket.abort()

    async def _finish_writing(self, *, drains: bool) -> None:
        """Raises TimeoutError if the socket does not accept the last frames; a closed socket has none."""
        if self.outbox.is_empty:
            await self.outbox.finish()
            return
        async with asyncio.timeout(_DRAIN_FLUSH_S if drains else _FLUSH_S):
            await self.outbox.finish()

    def supersede(self) -> None:
        """Ends this connection because the same device and tab has a newer one."""
        self.services.counts.takeovers += not self.is_over
        notice = Refusal("superseded", "a newer connection has this device", fatal=True)
        self.feed(EndRequested(CloseCode.SUPERSEDED, notice))

    def forget(self) -> None:
        """Ends this connection because the data of its principal was erased."""
        notice = Refusal("forgotten", _FORGOTTEN, fatal=True)
        self.feed(EndRequested(CloseCode.REVOKED, notice))

    def drain(self, within_ms: int, jitter_ms: int) -> None:
        """Asks the client to reconnect elsewhere."""
        self.feed(DrainAsked(within_ms, jitter_ms))

    # Time

    def _schedule(self) -> None:
        due_s = next_tick_s(self._state, waits=self.must_wait)
        if self._timer is not None:
            if self._timer.when() <= due_s and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = None if self.is_over else self._loop.call_at(due_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.feed(Ticked(waits=self.must_wait))

    # Authentication

    async def _admit(self, hello: Hello) -> None:
        rights = self._rights
        await self._admissions.enter()
        try:
            principal = await rights.identify(hello)
            await self._roster.enter(rights.owner, hello.device, self)
            admission = await rights.admit(hello, principal)
        except PasserelleError as error:
            self.feed(EndRequested(*end_connection(error, "hello")))
            return
        finally:
            self._admissions.leave()
        self._roster.install(rights.owner, self)
        self._story = LinkStory(admission.continues, hello.subscriptions)
        self._link_facts.add(admission, self._story.begin())
        self.feed(Admitted(admission.welcome, rights.find_end_s()))
        rights.recheck_later()

    def recheck(self) -> None:
        """Checks credential and rights now."""
        self._rights.recheck()

    async def recheck_rights(self) -> None:
        """Checks whether all followed and served streams are still permitted."""
        if self._agent is not None:
            self._agent.recheck()
        await self._subscriptions.recheck()

    # Presence

    def show_presence(self, shown: ShowPresence) -> None:
        """Sends the client the presence of the principal's devices."""
        self.feed(NoticeDue(shown))

    async def _write_presence(self) -> None:
        """Writes the device's presence, and subscribes it to the presence of all devices, its own included."""
        await self._presence.write(self._rights.known)
        self._board.watch(self._rights.owner, self)

    async def _withdraw(self) -> None:
        """Removes the device's presence; if the store is unavailable it expires."""
        admission = self._rights.admission
        if admission is not None and self._presence.has_spoken:
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(_FLUSH_S):
                    await self._presence.withdraw(admission)

    # Agents that dial in

    def _serve_agent(self, frame: ServingFrame) -> None:
        if self._agent is None:
            self._agent = self._begin_serving()
        if self._agent is None:
            refusal = Refusal(
                "unsupported", "this gateway serves no agents over channels", frame.TAG
            )
            self.feed(Undecodable(refusal))
        else:
            self._agent.take(frame)

    def _begin_serving(self) -> AgentSide | None:
        host = self.services.agents
        if host is None:
            return None
        link = AgentLink(
            self._rights.known.welcome.connection,
            lambda frame: self.outbox.put(encode_server(frame)),
            lambda: None if self.is_over else self._read_on(),
        )
        return AgentSide(
            host,
            link,
            lambda: self.principal,
            lambda refusal: self.feed(Undecodable(refusal)),
            self.spawn,
        )

    def _ask_agents(self, frame: Call | AskingFrame | AnswerPiece) -> None:
        asked = self.services.asked
        if self._asking is None and asked is not None:
            self._asking = AskingSide(
                asked,
                self.outbox,
                lambda: self.principal,
                lambda answer: self.feed(CallAnswered(answer)),
                lambda refusal: self.feed(Undecodable(refusal)),
                self.spawn,
            )
        if self._asking is not None:
            self._asking.take(frame)
        elif isinstance(frame, Call):
            self.feed(CallAnswered(refuse_call(frame.id, UnknownMethod(frame.method))))

    # Acks and calls

    def _store_acks(self, cursors: Mapping[str, Cursor]) -> None:
        if self._story is not None:
            self._story.note_acks(cursors)
        for stream, cursor in cursors.items():
            grant = self._subscriptions.find_grant(stream)
            if grant is not None:
                self.acks.store(stream, grant, cursor)

    async def _call(self, call: Call) -> None:
        """Carries out a call; a socket that a newer one has replaced decides nothing (CHN-9)."""
        try:
            if call.method == _DECIDES and await self._may_not_decide(call):
                self.supersede()
                return
        except PasserelleError as error:
            self.feed(CallAnswered(refuse_call(call.id, error)))
            return
        self.feed(CallAnswered(await execute_call(self.services, self._rights.known, call)))

    async def _may_not_decide(self, call: Call) -> bool:
        """Whether a newer socket has replaced this one; the call's data is prefetched meanwhile."""
        self.services.calls.foresee(self.principal, call.method, call.data)
        return await self._rights.is_superseded()

    # Tasks

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Runs a coroutine that ends with the connection; an exception in it ends the connection."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            structlog.get_logger().error("channel.fault", channel=self.channel, exc_info=error)
            self.feed(EndRequested(CloseCode.RESTART))
