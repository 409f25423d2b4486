"""Follows an inbox over a channel, and sends the person's decisions over the same channel.

After each decision the approval is read again before the next input: the screen shows it as decided only if the gateway
says so.
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
from passerelle.protocol.concurrency import keep_until_done

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
    """Displays the inbox."""

    def show(self, inbox: Inbox, link: str, now_ms: int) -> None:
        """Displays the current state."""
        ...

    def close(self) -> None:
        """Ends the display."""
        ...


@dataclass(slots=True)
class InboxWatcher:
    """Watches until the person quits, or the gateway is unavailable for longer than ``patience_s``."""

    output: InboxOutput
    clock: Clock
    sign: Sign
    patience_s: float
    once: bool
    """Ends once the inbox has been shown: for scripts."""
    inbox: Inbox = field(default_factory=Inbox)
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _link: str = ""
    _outage: OutageTimer = field(init=False)
    _decisions: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def __post_init__(self) -> None:
        self._outage = OutageTimer(self.patience_s)

    async def watch(self, url: str, token: str | None, tls: SSLContext | None = None) -> None:
        """Runs until it is over.

        Raises:
            Forbidden, RemoteError: the gateway refuses the stream, or is unavailable for too long.
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
        # report the person as active: phones need not ring for approvals on this screen
        client.say_presence("active", (STREAM,))
        match self.inbox.press(key):
            case Quit():
                self._over.set()
            case Decide() as decision:
                keep_until_done(group.create_task(self._decide(client, decision)), self._decisions)
            case None:
                pass
        self._show()

    async def _decide(self, client: ChannelClient, decision: Decide) -> None:
        action = text_at(decision.view, "actionId")
        body: dict[str, Json] = {
            "rev": decision.view.get("rev"),
            "digest": text_at(decision.view, "digest"),
            "optionId": decision.option_id,
            "decisionId": f"dec_{secrets.token_hex(16)}",
            **({"content": {"text": decision.words}} if decision.words else {}),
        }
        signed = {**self.sign(body, action), "actionId": action}
        try:
            result = await client.call("respond_action", signed, idem=str(body["decisionId"]))
            if text_at(result, "outcome") == "vote_recorded":
                self.inbox.notes.append(
                    f"vote recorded: {result.get('votes')} of {result.get('need')}"
                )
        except CallRefused as refused:
            winner = object_at(refused.data, "winner")
            who = f", decided by {text_at(winner, 'decidedBy')}" if winner else ""
            self.inbox.notes.append(f"refused ({refused.code}){who}")
        except UnknownOutcome:
            self.inbox.notes.append("no response to the decision; reading the approval again")
        await self._refresh(client, action)

    async def _refresh(self, client: ChannelClient, action: str) -> None:
        """Reads the approval from the gateway."""
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
                self.inbox.notes.append(f"missed events ({why.value}), shown from a snapshot")
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
        """Updates the remaining times each second, and ends the watch if the gateway stays unavailable."""
        while True:
            self._outage.check()
            self._show()
            await asyncio.sleep(_TICK_S)


@contextlib.contextmanager
def read_keys(press: Callable[[str], None]) -> Generator[None]:
    """Passes each key of the terminal to ``press`` while the block runs; without a terminal does nothing."""
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
