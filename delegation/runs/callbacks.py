"""Callbacks of peers: what a peer gets to call back with news of a task, and the check of its calls.

Each run gets an address and a token of its own, 256 random bits each. Only their hashes are stored, for as long as the
run can last. A valid call is a hint: the driver polls the peer, so a task's status is always read from the peer itself,
and repeated or late calls change nothing.

A stream brings everything at once, so a peer that streams gets the address only when its stream is gone. A driver
that takes a run over finds what its peer was given.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.a2a_mapping.replies import read_task_id
from passerelle.core.errors import PasserelleError
from passerelle.core.frozen import frozen
from passerelle.core.ids import encode_base32, read_shard
from passerelle.core.peer import Answered, RefusedByPeer
from passerelle.core.task.record import TaskRecord
from passerelle.store.peers import Callback

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.core.peer import Peer, PeerCard
    from passerelle.core.ports.chance import Clock, Ids
    from passerelle.core.wire.json import JsonObject
    from passerelle.runtime.records.writes import Writes
    from passerelle.store.peers import RedisCallbacks

PATH: Final = "/callbacks"
BITS: Final = 256
_CHARACTERS: Final = 52
_ID_CHARACTERS: Final = 26
_SLACK_MS: Final = 3_600_000
PER_SECOND: Final = 10
_MOST_RUNS: Final = 4_096


@dataclass(slots=True)
class Callbacks:
    """Offers callbacks to peers and checks their calls. ``public_url`` is the base of their addresses."""

    store: RedisCallbacks
    writes: Writes
    ids: Ids
    clock: Clock
    public_url: str
    _calls: OrderedDict[str, tuple[int, int]] = field(
        default_factory=OrderedDict["str", "tuple[int, int]"]
    )

    async def offer(self, record: TaskRecord, card: PeerCard) -> JsonObject | None:
        """The push config for the live run of a task; None where the peer does not call back.

        Raises:
            StoreUnavailable: it could not be stored; the run continues without it.
        """
        run = record.run
        if run is None or not card.push:
            return None
        nonce, token = self._draw(_CHARACTERS, BITS), self._draw(_CHARACTERS, BITS)
        ttl_ms = run.retry_policy.total_timeout_ms + _SLACK_MS
        callback = Callback(record.task_id, _digest(nonce), _digest(token))
        await self.store.keep(run.run_id, callback, ttl_ms)
        return {
            "id": self._draw(_ID_CHARACTERS, BITS // 2),
            "url": f"{self.public_url}{PATH}/{run.run_id}/{nonce}",
            "token": token,
            "authentication": {"scheme": "Bearer", "credentials": token},
        }

    async def is_offered(self, run: str) -> bool:
        """Whether a config for a run exists.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        return await self.store.find(run) is not None

    async def judge(
        self, run: str, nonce: str, tokens: tuple[str | None, ...], body: JsonObject
    ) -> str | None:
        """The task that a call is about; None for an invalid call, whatever is wrong with it.

        Raises:
            StoreUnavailable: the call cannot be checked now.
        """
        if read_shard(run) is None:
            return None
        known = await self.store.find(run)
        if known is None or not _is_same(nonce, known.nonce):
            return None
        if not any(_is_same(token or "", known.token) for token in tokens):
            return None
        record = await self.writes.read(TaskRecord, known.task)
        if record is None or record.run is None or record.run.run_id != run:
            return None
        remote, named = record.run.remote_task_id, read_task_id(body)
        # Before the peer's answer its task id is unknown; the call may be faster.
        return known.task if named is not None and remote in {None, named} else None

    def count_runs(self) -> int:
        """The number of runs with a known time of their last call."""
        return len(self._calls)

    def is_too_often(self, run: str) -> bool:
        """Whether a run calls more often than its limit; a repeated hint contains nothing new.

        Nothing is stored for a name that is no id: anyone who reaches the port may choose it.
        """
        if read_shard(run) is None:
            return False
        second = self.clock.now_ms() // 1_000
        since, count = self._calls.pop(run, (second, 0))
        count = count + 1 if since == second else 1
        self._calls[run] = (second, count)
        if len(self._calls) > _MOST_RUNS:
            self._calls.popitem(last=False)
        return count > PER_SECOND

    def _draw(self, characters: int, bits: int) -> str:
        return encode_base32(self.ids.draw(bits), characters)


@frozen
class CallbackEdge:
    """What the HTTP route needs; ``wake(task)`` has the driver of a task poll its peer."""

    callbacks: Callbacks
    wake: Callable[[str], bool]


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _is_same(given: str, digest: str) -> bool:
    return hmac.compare_digest(_digest(given), digest)


@dataclass(slots=True)
class CallbackOffer:
    """The callback of one run; ``is_agreed``: the peer was given an address to call."""

    callbacks: Callbacks
    peer: Peer
    is_agreed: bool = False
    _is_tried: bool = False

    async def offer(self, record: TaskRecord) -> JsonObject | None:
        """The push configuration for a message; without it the peer is polled."""
        run = record.run
        if run is None or run.delivery_mechanism == "streaming":
            return None
        config = await self._make(record)
        self.is_agreed = config is not None
        return config

    async def agree(self, record: TaskRecord) -> None:
        """Sends the peer of a run the address to call, once; a peer that rejects such requests is polled as before."""
        run = record.run
        if self._is_tried or self.is_agreed or run is None or run.remote_task_id is None:
            return
        self._is_tried = True
        if not await self._is_able():
            return
        if await self._is_known(run.run_id):
            self.is_agreed = True
            return
        config = await self._make(record)
        if config is None:
            return
        outcome = await self.peer.register_push(run.remote_task_id, config)
        self.is_agreed = isinstance(outcome, Answered)
        # A peer that was unreachable or busy gets it at the next poll.
        self._is_tried = isinstance(outcome, Answered | RefusedByPeer)

    async def _is_able(self) -> bool:
        try:
            return (await self.peer.describe()).push
        except PasserelleError:
            return False

    async def _is_known(self, run_id: str) -> bool:
        try:
            return await self.callbacks.is_offered(run_id)
        except PasserelleError:
            return False

    async def _make(self, record: TaskRecord) -> JsonObject | None:
        try:
            return await self.callbacks.offer(record, await self.peer.describe())
        except PasserelleError:
            return None
