"""Follows an inbox over a channel, and says over the same channel what the person decides.

After an answer without a result the question is read again before anything else can be said about it: nothing is shown
as decided that the gateway has not result.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
import termios
import tty
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, assert_never, cast

from passerelle.a2a_mapping.members import object_at, objects_at, text_at
from passerelle.cli.watch.inbox import Decide, Inbox, Quit
from passerelle.cli.watch.link import OutageTimer, open_link
from passerelle.client.items import (
    CallRefused,
    Event,
    Gap,
    Item,
    Live,
    Offline,
    Snapshot,
    UnknownOutcome,
)
from passerelle.core.event_type import EventType

if TYPE_CHECKING:
    from ssl import SSLContext

    from passerelle.client.channel import ChannelClient
    from passerelle.client.items import LinkStatus
    from passerelle.core.ports.chance import Clock
    from passerelle.core.wire.json import Json, JsonObject

STREAM: Final = "inbox"
_TICK_S: Final = 1.0
_ARROWS: Final = {"\x1b[A": "up", "\x1b[B": "down"}
_ASKING: Final = frozenset({EventType.ACTION_REQUIRED, EventType.CHANNEL_PERMISSION_FORWARDED})
Sign: TypeAlias = Callable[["dict[str, Json]", str], "dict[str, Json]"]


class InboxOutput(Protocol):
    """Where the inbox is shown."""

    def show(self, inbox: Inbox, link: str, now_ms: int) -> None:
        """Shows it as it stands."""
        ...

    def close(self) -> None:
        """Shows nothing more."""
        ...


@dataclass(slots=True)
class InboxWatcher:
    """Watches until the person quits, or the gateway stays away for ``patience_s``."""

    output: InboxOutput
    clock: Clock
    sign: Sign
    patience_s: float
    once: bool = False
    """Ends when the inbox has been shown once: for programs."""
    inbox: Inbox = field(default_factory=Inbox)
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _link: str = ""
    _outage: OutageTimer = field(init=False)
    _decisions: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def __post_init__(self) -> None:
        self._outage = OutageTimer(self.patience_s)

    async def watch(self, url: str, token: str | None, tls: SSLContext | None = None) -> None:
        """Returns when it is over.

        Raises:
            Forbidden, RemoteError: the gateway does not let us look, or is away for too long.
        """
        try:
            async with open_link(url, token, tls, "inbox", self._on_status) as client:
                await self._follow(client)
        finally:
            self.output.close()

    async def _follow(self, client: ChannelClient) -> None:
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(self._tick()), group.create_task(self._read(client))]
            with read_keys(lambda key: self._press(group, client, key)):
                await self._over.wait()
            for task in (*helpers, *self._decisions):
                task.cancel()

    def _press(self, group: asyncio.TaskGroup, client: ChannelClient, key: str) -> None:
        # Somebody sits here: no phone needs to ring for what stands before their eyes.
        client.say_presence("active", (STREAM,))
        match self.inbox.press(key):
            case Quit():
                self._over.set()
            case Decide() as decision:
                sending = group.create_task(self._decide(client, decision))
                self._decisions.add(sending)
                sending.add_done_callback(self._decisions.discard)
            case None:
                pass
        self._show()

    async def _decide(self, client: ChannelClient, decision: Decide) -> None:
        action = text_at(decision.view, "actionId")
        said: dict[str, Json] = {
            "rev": decision.view.get("rev"),
            "digest": text_at(decision.view, "digest"),
            "optionId": decision.option_id,
            "decisionId": f"dec_{secrets.token_hex(16)}",
            **({"content": {"text": decision.words}} if decision.words else {}),
        }
        signed = {**self.sign(said, action), "actionId": action}
        try:
            result = await client.call("respond_action", signed, idem=str(said["decisionId"]))
            if text_at(result, "outcome") == "vote_recorded":
                self.inbox.notes.append(
                    f"vote recorded: {result.get('votes')} of {result.get('need')}"
                )
        except CallRefused as refused:
            winner = object_at(refused.data, "winner")
            who = f", decided by {text_at(winner, 'decidedBy')}" if winner else ""
            self.inbox.notes.append(f"refused ({refused.code}){who}")
        except UnknownOutcome:
            self.inbox.notes.append("no word of the answer; looking again")
        await self._refresh(client, action)

    async def _refresh(self, client: ChannelClient, action: str) -> None:
        """The question as the gateway has it."""
        with contextlib.suppress(CallRefused, UnknownOutcome):
            self.inbox.put(await client.call("get_action", {"actionId": action}))
        self._show()

    async def _read(self, client: ChannelClient) -> None:
        opened = client.stream(STREAM, start="snap")
        async with contextlib.aclosing(cast("AsyncGenerator[Item]", opened)) as items:
            async for item in items:
                await self._take(client, item)

    async def _take(self, client: ChannelClient, item: Item) -> None:
        match item:
            case Snapshot(data=data):
                self.inbox.replace(objects_at(data, "pending"))
            case Event(data=data):
                await self._fold(client, data)
            case Live():
                if self.once:
                    self._over.set()
            case Gap(why=why):
                self.inbox.notes.append(f"missed events ({why.value}), shown anew")
            case _:
                assert_never(item)
        self._show()

    async def _fold(self, client: ChannelClient, data: JsonObject) -> None:
        action, kind = text_at(data, "actionId"), text_at(data, "type")
        if kind == EventType.ACTION_RESOLVED:
            self.inbox.close(action, object_at(object_at(data, "payload"), "decision"))
        elif kind in _ASKING:
            await self._refresh(client, action)

    def _show(self) -> None:
        self.output.show(self.inbox, self._link, self.clock.now_ms())

    def _on_status(self, status: LinkStatus) -> None:
        word = self._outage.update(status)
        if word is not None:
            self._link = word if isinstance(status, Offline) else ""
        self._show()

    async def _tick(self) -> None:
        """Time left falls without an event; and a gateway that stays away ends it."""
        while True:
            self._outage.check()
            self._show()
            await asyncio.sleep(_TICK_S)


@contextlib.contextmanager
def read_keys(press: Callable[[str], None]) -> Generator[None]:
    """Hands each key of a terminal on while the block lasts; without a terminal there are none."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    loop = asyncio.get_running_loop()

    def take() -> None:
        typed = os.read(terminal, 64).decode(errors="replace")
        for key in [_ARROWS[typed]] if typed in _ARROWS else typed:
            press(key)

    tty.setcbreak(terminal)
    loop.add_reader(terminal, take)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
