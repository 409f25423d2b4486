"""Text of artifacts in progress: published to live followers before any of it is stored (EVC-6).

Nothing depends on it. Each chunk is stored with the frame that callers see, whatever is received here. So nothing
waits for a publication, one is in progress per session at a time, and text that comes meanwhile is sent together.
Without listeners this is found out once a second, and the first listener misses nothing: every open block is published
whole.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.content import find_artifact, read_text
from passerelle.core.errors import StoreUnavailable
from passerelle.core.events import Event, Fact, encode_event
from passerelle.core.payloads.run import ModelDelta
from passerelle.core.ports.deltas import TextDelta
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task import machine as tasks
from passerelle.core.wire.times import format_ms
from passerelle.protocol.concurrency import cancel_all

if TYPE_CHECKING:
    from passerelle.a2a_mapping.content import Chunk
    from passerelle.core.batch import EntityRef
    from passerelle.core.facts import Scope
    from passerelle.core.ports.chance import Clock, Ids
    from passerelle.core.ports.deltas import Deltas
    from passerelle.delegation.runs.draft import DecisionDraft

_PROBE_MS: Final = 1_000
_LONGEST_BLOCK: Final = 256 * 1024
_LONGEST_WAIT: Final = 64 * 1024
"""Characters that may wait behind a publication; more of them are dropped for all listeners."""


@dataclass(slots=True)
class _Block:
    name: str
    scope: Scope
    pieces: list[str]
    length: int
    is_published: bool = True
    """False once it is too long to be published in pieces."""

    def whole(self) -> TextDelta:
        text = "".join(self.pieces)
        self.pieces = [text]
        return TextDelta(self.name, 0, text)


@dataclass(slots=True)
class _Waiting:
    block: _Block
    at: int
    text: str
    grows: bool = True
    """False once a reader has got the text up to its end: further text must begin there."""


@dataclass(slots=True)
class _Channel:
    """The blocks of one session by task and artifact, and the text that waits to be published."""

    stream: StreamRef
    blocks: dict[tuple[str, str], _Block] = field(default_factory=dict[tuple[str, str], _Block])
    waiting: deque[_Waiting] = field(default_factory=deque["_Waiting"])
    has_listeners: bool = False
    probe_ms: int = 0
    publishing: asyncio.Task[None] | None = None

    def list_published(self) -> list[_Block]:
        return [block for block in self.blocks.values() if block.is_published]


@dataclass(slots=True)
class OpenTexts:
    """``core.ports.deltas.OpenText`` for the runs of this instance, and the publisher of their text."""

    deltas: Deltas
    clock: Clock
    ids: Ids
    runtime_id: str
    _channels: dict[str, _Channel] = field(default_factory=dict[str, _Channel])
    _sessions: dict[str, str] = field(default_factory=dict[str, str])
    """The session of each task that has published text."""

    def add_chunks(self, draft: DecisionDraft) -> None:
        """Takes the text of a step, before it is stored."""
        scope = tasks.scope_of(draft.record)
        channel = self._channels.get(scope.session_id)
        if channel is None:
            stream = StreamRef(StreamKind.SESSION, scope.session_id)
            channel = self._channels[scope.session_id] = _Channel(stream)
        self._sessions[draft.context.task.id] = scope.session_id
        for chunk in draft.chunks:
            block = _open(channel, draft, scope, chunk)
            if block.is_published:
                self._add(channel, block, chunk.text)
        if channel.waiting and channel.publishing is None:
            channel.publishing = asyncio.create_task(self._publish(channel), name="deltas")

    def close(self, task: EntityRef) -> None:
        """The run of a task has ended or moved: its blocks are not published any more."""
        if task.id not in self._sessions:
            return
        session = self._sessions.pop(task.id)
        channel = self._channels.get(session)
        if channel is None:
            return
        for key in [key for key in channel.blocks if key[0] == task.id]:
            del channel.blocks[key]
        if not channel.blocks and channel.publishing is None:
            del self._channels[session]

    def read_blocks(self, session: str) -> list[TextDelta]:
        """Each open block of a session as one delta from 0 on; present listeners continue after it."""
        channel = self._channels.get(session)
        if channel is None:
            return []
        channel.has_listeners = True
        for one in channel.waiting:
            one.grows = False
        return [block.whole() for block in channel.list_published()]

    async def drain(self) -> None:
        """Cancels publications in progress: no listener depends on them."""
        await cancel_all([one.publishing for one in self._channels.values() if one.publishing])
        self._channels.clear()

    def _add(self, channel: _Channel, block: _Block, text: str) -> None:
        at = block.length
        block.pieces.append(text)
        block.length += len(text)
        if not channel.has_listeners:
            now_ms = self.clock.now_ms()
            if now_ms < channel.probe_ms:
                return
            channel.probe_ms = now_ms + _PROBE_MS
        last = channel.waiting[-1] if channel.waiting else None
        if last is None or last.block is not block or not last.grows:
            channel.waiting.append(_Waiting(block, at, text))
        else:
            last.text += text
        if sum(len(one.text) for one in channel.waiting) > _LONGEST_WAIT:
            channel.waiting.clear()

    async def _publish(self, channel: _Channel) -> None:
        try:
            while channel.waiting:
                one = channel.waiting.popleft()
                had_listeners = channel.has_listeners
                channel.has_listeners = await self._publish_one(
                    channel, one.block, one.at, one.text
                )
                if channel.has_listeners and not had_listeners:
                    await self._publish_whole(channel)
        except StoreUnavailable:
            channel.waiting.clear()
        finally:
            channel.publishing = None
            if not channel.blocks:
                self._channels.pop(channel.stream.id, None)

    async def _publish_whole(self, channel: _Channel) -> None:
        """Publishes every open block to new listeners: earlier text was published without any."""
        for block in channel.list_published():
            whole = block.whole()
            for one in channel.waiting:
                one.grows = one.grows and one.block is not block
            await self._publish_one(channel, block, 0, whole.text)

    async def _publish_one(self, channel: _Channel, block: _Block, at: int, text: str) -> bool:
        event = Event(
            event_id=self.ids.mint("ev", channel.stream.shard),
            timestamp=format_ms(self.clock.now_ms()),
            runtime_id=self.runtime_id,
            fact=Fact(block.scope, ModelDelta(text, block.name, at)),
        )
        return await self.deltas.publish(channel.stream, encode_event(event)) > 0


def _open(channel: _Channel, draft: DecisionDraft, scope: Scope, chunk: Chunk) -> _Block:
    """The block of a chunk."""
    key = (scope.task_id or "", chunk.artifact)
    block = channel.blocks.get(key)
    if block is None or not chunk.appends:
        before = _find_before(draft, chunk.artifact) if chunk.appends else ""
        name = f"{draft.facade}/{chunk.artifact}"
        block = channel.blocks[key] = _Block(name, scope, [before], len(before))
    if block.length + len(chunk.text) > _LONGEST_BLOCK:
        block.is_published, block.pieces = False, []
    return block


def _find_before(draft: DecisionDraft, artifact: str) -> str:
    """The text of an artifact before these chunks, from other chunks or from a whole Task."""
    text = read_text(find_artifact(draft.context.content or {}, artifact))
    brought = sum(len(chunk.text) for chunk in draft.chunks if chunk.artifact == artifact)
    return text[: max(0, len(text) - brought)]
