"""A2A push notifications as a kind of target: ``push:<facade>:<config id>``.

The receiver gets the StreamResponse frames that a subscriber of the task gets, one by one, or one whole Task if it is
too far behind (A2A 1.0 section 4.3.3).

The headers state the protocol version and prove the origin (A2A 1.0 section 13.2). Credentials of the config go into
``Authorization`` as they were given. A config with the scheme Bearer and no credentials gets a token signed by us, over
the digest of the body, for receivers that verify with our JWKS.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import orjson

from passerelle.a2a_mapping.frames import task_frame
from passerelle.a2a_mapping.members import object_at
from passerelle.a2a_mapping.v0_3.forms import Form
from passerelle.a2a_mapping.v0_3.objects import write_message, write_task
from passerelle.channels.services import FOLLOW
from passerelle.channels.task_follower import LAST
from passerelle.core.batch import IdempotencyRow
from passerelle.core.errors import InvalidInput, NotFound
from passerelle.core.events import Fact
from passerelle.core.frozen import frozen
from passerelle.core.ids import derive_id, parse_facade
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.ports.log import StreamKind, StreamRef
from passerelle.core.task import machine as tasks
from passerelle.core.task.record import TaskRecord
from passerelle.core.task.status import ENDED
from passerelle.core.wire.codec import from_bytes
from passerelle.runtime.records.exposures import view_exposure
from passerelle.runtime.records.writes import AppendOptions
from passerelle.webhooks.kinds import (
    DeliveryRequest,
    Opened,
    ReplayLimits,
    StateSnapshot,
    TargetDescription,
    may_follow,
)
from passerelle.webhooks.push_configs import StoredPush, read_push_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from passerelle.channels.cursor_check import LinkedEntry
    from passerelle.channels.task_follower import TaskFollower
    from passerelle.core.decision import Decision, Held
    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.log import Entry
    from passerelle.core.principal import Principal
    from passerelle.core.push import PushConfig
    from passerelle.core.wire.json import JsonObject
    from passerelle.protocol.cursor import Cursor
    from passerelle.runtime.common.signatures import Signer
    from passerelle.runtime.records.writes import Writes
    from passerelle.webhooks.addresses import Address
    from passerelle.webhooks.push_configs import PushConfigs, PushName

TOKEN: Final = "X-A2A-Notification-Token"  # noqa: S105  the name of a header
DELIVERY: Final = "X-Passerelle-Delivery"
CURSOR: Final = "X-Passerelle-Cursor"
SIGNATURE: Final = "X-Passerelle-Signature"
TOKEN_LIFETIME_S: Final = 300
_MEDIA_TYPES: Final = {"1.0": "application/a2a+json", "0.3": "application/json"}


@frozen
class Authority:
    """Signs deliveries as ``issuer``, which publishes the JWKS."""

    signer: Signer
    issuer: str
    clock: Clock

    def sign_body(self, body: bytes) -> str:
        """Detached signatures over a body, one by each signing key."""
        return ", ".join(signature.detached for signature in self.signer.sign(body))

    def make_token(self, audience: str, delivery: str, body: bytes) -> str:
        """A JWT for one delivery to one origin."""
        now_s = self.clock.now_ms() // 1000
        return self.signer.sign_token(
            {
                "iss": self.issuer,
                "aud": audience,
                "iat": now_s,
                "exp": now_s + TOKEN_LIFETIME_S,
                "jti": delivery,
                "request_body_sha256": hashlib.sha256(body).hexdigest(),
            }
        )


def compose_headers(
    config: PushConfig,
    address: Address,
    body: bytes,
    delivery: str,
    cursor: str,
    authority: Authority | None,
) -> dict[str, str]:
    """The headers of one delivery."""
    headers = {
        "Content-Type": _MEDIA_TYPES[config.dialect],
        DELIVERY: delivery,
        CURSOR: cursor,
    }
    if config.token is not None:
        headers[TOKEN] = config.token
    if config.scheme is not None and config.credentials is not None:
        headers["Authorization"] = f"{config.scheme} {config.credentials}"
    if authority is not None:
        headers[SIGNATURE] = authority.sign_body(body)
        if config.credentials is None and (config.scheme or "").lower() == "bearer":
            token = authority.make_token(address.origin, delivery, body)
            headers["Authorization"] = f"Bearer {token}"
    return headers


BOUNDS: Final = ReplayLimits(wanted=100, events=2_000)
"""Reading more of a session than this costs more than sending the whole Task."""
_WARNING_MS: Final = 3_600_000


@frozen
class PushKind:
    """Opens push targets from the store. ``authority`` signs deliveries, if there are keys."""

    configs: PushConfigs
    following: TaskFollower
    authority: Authority | None
    find_principal: Callable[[str, str], Principal | None]
    """The current rights of a principal, by its id and tenant."""

    async def open(self, name: str) -> Opened | None:
        """Opens the config as it is stored now."""
        found = await self._find(name)
        if found is None:
            return None
        push, held, record = found
        stored = _read_stored(found)
        feed = PushFeed(self, push, stored, held, record) if stored else None
        return Opened(StreamRef(StreamKind.SESSION, record.session_id), feed)

    async def describe(self, name: str) -> TargetDescription | None:
        """Describes it for its owner: without secrets, and without the URL query, which may contain one."""
        found = await self._find(name)
        if found is None:
            return None
        push, _, record = found
        stored = _read_stored(found)
        members: JsonObject = {
            "kind": "push",
            "taskId": push.facade,
            "configId": push.config_id,
            "url": stored.url.partition("?")[0] if stored else "",
        }
        return TargetDescription(
            record.owner, StreamRef(StreamKind.SESSION, record.session_id), members
        )

    @property
    def writes(self) -> Writes:
        """The write path of the configs."""
        return self.configs.writes

    async def _find(self, name: str) -> tuple[PushName, Held, TaskRecord] | None:
        push = read_push_name(name)
        if push is None:
            return None
        held = await self.writes.load_one(push.task)
        return _view_exposure(push, held)


def _view_exposure(push: PushName, held: Held) -> tuple[PushName, Held, TaskRecord] | None:
    """The task as callers see it under the id of the config."""
    parsed = parse_facade(push.facade)
    then = view_exposure(held, parsed[1]) if parsed else None
    if then is None or not isinstance(then.record, TaskRecord):
        return None
    return push, then, then.record


def _read_stored(found: tuple[PushName, Held, TaskRecord] | None) -> StoredPush | None:
    if found is None:
        return None
    value = found[1].fields.get(found[0].field)
    return from_bytes(StoredPush, value, newer=True) if value else None


@dataclass(slots=True)
class PushFeed:
    """What one config gets."""

    kind: PushKind
    name: PushName
    stored: StoredPush
    held: Held
    record: TaskRecord
    shown: int = 0
    """The last event that a Task sent to a receiver of 0.3 contains."""

    @property
    def address(self) -> Address:
        """The URL of the config, checked against the current rules, and the rights of the owner of the task."""
        scope = self.record.scope
        if not may_follow(self.kind.find_principal(scope.principal, scope.tenant), FOLLOW):
            raise InvalidInput("url", "the owner of the task may not follow it any more")
        return self.kind.configs.rules.judge(self.stored.url)

    async def weigh(self, *, whole: bool) -> int:
        """The artifacts of the Task; a receiver of 0.3 gets it at each event."""
        if not whole and self.stored.dialect != "0.3":
            return 0
        await self._reload()
        return sum(artifact.size for artifact in self.record.artifacts)

    @property
    def bounds(self) -> ReplayLimits:
        """Beyond these limits it gets the Task in place of frames."""
        return BOUNDS

    def wants(self, entry: Entry) -> bool:
        """Every frame of its task that the receiver has not been shown."""
        return entry.facade == self.name.facade and entry.sequence > self.shown

    def ends_with(self, entry: Entry) -> bool:
        """Whether a frame is the last one that callers see."""
        return entry.type in LAST

    def is_over(self, cursor: Cursor) -> bool:
        """Whether the task had ended when it was read, and the receiver has confirmed all of it."""
        return self._has_ended() and cursor.sequence >= self.record.last

    def split(self, wanted: tuple[LinkedEntry, ...]) -> list[tuple[LinkedEntry, ...]]:
        """One frame for each request; a receiver of 0.3 gets all of them as the Task that they led to."""
        if self.stored.dialect == "0.3":
            return [wanted] if wanted else []
        return [(linked,) for linked in wanted]

    def find_acked(
        self, answer: bytes, together: tuple[LinkedEntry, ...], cursor: Cursor
    ) -> Cursor | None:
        """Everything: A2A defines no partial acknowledgement."""
        del answer, together
        return cursor

    async def compose(
        self, together: tuple[LinkedEntry, ...], since: Cursor, cursor: Cursor
    ) -> DeliveryRequest:
        """The frame of an entry as stored; a 0.3 receiver gets the current Task."""
        del since
        entry = together[-1].entry
        if self.stored.dialect == "0.3":
            return self._pack(await self._compose_old(entry), entry.event_id, cursor)
        if entry.frame is not None:
            offset, length = entry.frame
            return self._pack(entry.data[offset : offset + length], entry.event_id, cursor)
        return self._pack(orjson.dumps(await self._read_frame(entry)), entry.event_id, cursor)

    async def compose_snapshot(self, why: str, since: Cursor) -> StateSnapshot:
        """The current Task, and the cursor after its last event; both from one read of its record."""
        del why, since
        await self._reload()
        cursor = await self.kind.following.locate(self.record)
        if not self.record.shown:
            return StateSnapshot(None, cursor, ends=self._has_ended())
        task = await self._read_task()
        old = self.stored.dialect == "0.3"
        body = _render_old(task) if old else orjson.dumps(task_frame(task))
        return StateSnapshot(
            self._pack(body, f"whole.{cursor.sequence}", cursor), cursor, ends=self._has_ended()
        )

    async def warn(self, reason: str, since_ms: int) -> None:
        """Records a ``runtime.warning`` of the task, once for each ``since_ms``."""
        message = f"push config {self.name.config_id}: deliveries were given up ({reason})"
        warning = WarningRaised("push_given_up", message)
        task, writes = self.name.task, self.kind.writes
        key = derive_id("warn", task.shard, self.name.target, str(since_ms))

        def body(decision: Decision) -> AppendOptions:
            record = decision.state(task)
            if isinstance(record, TaskRecord):
                decision.add([Fact(tasks.scope_of(record), warning)])
            return AppendOptions(idem=IdempotencyRow(key, key, b"", _WARNING_MS))

        await writes.decide(self.record.session_id, [task], body)

    def _has_ended(self) -> bool:
        return self.record.status in ENDED

    async def _reload(self) -> None:
        task = self.name.task
        found = _view_exposure(self.name, await self.kind.writes.load_one(task))
        if found is not None:
            _, self.held, self.record = found

    async def _compose_old(self, entry: Entry) -> bytes:
        """In 0.3 the body of a notification is the Task; a turn answered with a Message sends that Message."""
        frame = await self._read_frame(entry) or {}
        if "message" in frame:
            return orjson.dumps(write_message(object_at(frame, "message"), Form.KIND))
        await self._reload()
        task = await self._read_task()
        self.shown = self.record.last
        return _render_old(task)

    async def _read_frame(self, entry: Entry) -> JsonObject | None:
        return await self.kind.following.contents.read_frame(entry, self.name.task.shard)

    async def _read_task(self) -> JsonObject:
        task = await self.kind.following.contents.read_task(self.record, self.held.fields)
        if task is None:
            raise NotFound("task", self.name.facade)
        return task

    def _pack(self, body: bytes, event_id: str, cursor: Cursor) -> DeliveryRequest:
        config = self.kind.configs.open(self.name, self.stored)
        delivery = f"{quote(self.name.config_id, safe='')}/{event_id}"
        authority = self.kind.authority
        headers = compose_headers(config, self.address, body, delivery, str(cursor), authority)
        return DeliveryRequest(body, event_id, headers)


def _render_old(task: JsonObject) -> bytes:
    """The body for receivers of protocol 0.3: the Task in 0.3 JSON (A2A 0.3 section 9.5)."""
    return orjson.dumps(write_task(task, Form.KIND))
