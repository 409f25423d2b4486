"""Notifies a receiver of the operator about approvals: ``notify:<owner>:<notifier>``, a target on a person's inbox.

The receiver (a pager, a chat) gets one small message for each approval that opens or closes, in order, with the
retries and dead letters of every webhook, signed by Standard Webhooks: HMAC-SHA256 over id, timestamp and body. The
message contains no text of an agent and nothing to decide with: the person opens the approval to decide it. A receiver
that is new, or too far behind, gets the list of open approvals instead.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING, Final

import orjson

from passerelle.a2a_mapping.members import object_at, text_at, whole_at
from passerelle.channels.cursor_check import end_of
from passerelle.core.approval.paired_mark import is_for_paired, is_view_for_paired
from passerelle.core.event_type import EventType
from passerelle.core.frozen import frozen
from passerelle.core.payloads.runtime import WarningRaised
from passerelle.core.ports.log import StreamKind as Kind
from passerelle.core.ports.log import StreamRef
from passerelle.core.wire.times import format_ms
from passerelle.webhooks.addresses import Address
from passerelle.webhooks.kinds import (
    DeliveryRequest,
    Opened,
    ReplayLimits,
    StateSnapshot,
    TargetDescription,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from yarl import URL

    from passerelle.channels.cursor_check import LinkedEntry
    from passerelle.core.ports.chance import Clock
    from passerelle.core.ports.log import Entry, EventLog
    from passerelle.core.ports.projections import Projections
    from passerelle.core.principal import Principal
    from passerelle.core.wire.json import Json, JsonObject
    from passerelle.protocol.cursor import Cursor
    from passerelle.runtime.records.places import Home


def sign_request(secret: bytes | None, body: bytes, delivery: str, sent_s: int) -> DeliveryRequest:
    """Returns a request with its headers; without a secret it is not signed."""
    headers = {
        "Content-Type": "application/json",
        "webhook-id": delivery,
        "webhook-timestamp": str(sent_s),
    }
    if secret is not None:
        signed = b".".join((delivery.encode(), str(sent_s).encode(), body))
        made = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
        headers["webhook-signature"] = f"v1,{made}"
    return DeliveryRequest(body, delivery, headers)


KIND: Final = "notify"
NEW: Final = "00000000.0.00000000"
"""The cursor of a new receiver: it never verifies, so the state is sent first."""
_BOUNDS: Final = ReplayLimits(wanted=100, events=1_000)
_NOTIFIED: Final = frozenset({EventType.ACTION_REQUIRED, EventType.ACTION_RESOLVED})


@frozen
class Notifier:
    """One configured receiver. ``people`` are those whose approvals it gets; empty: everyone's."""

    name: str
    url: URL
    people: frozenset[str]
    secret: bytes | None

    def covers(self, principal: Principal) -> bool:
        """Whether it gets the approvals of a principal."""
        return not self.people or principal.id in self.people


def name_target(notifier: Notifier, owner: str) -> str:
    """The target name of a notifier on the inbox of an owner."""
    return f"{KIND}:{owner}:{notifier.name}"


@frozen
class NotifierKind:
    """Opens notifiers from configuration and store. A notifier that is no longer configured ends."""

    notifiers: Mapping[str, Notifier]
    log: EventLog
    projections: Projections
    clock: Clock
    home: Home
    operator: Principal

    async def open(self, name: str) -> Opened | None:
        """Opens the notifier as it is configured now."""
        _, owner, called = name.split(":", 2)
        notifier = self.notifiers.get(called)
        feed = NotifierFeed(self, notifier, owner) if notifier else None
        return Opened(StreamRef(Kind.INBOX, owner), feed)

    async def describe(self, name: str) -> TargetDescription | None:
        """Describes it for operators: everything but the secret."""
        _, owner, called = name.split(":", 2)
        notifier = self.notifiers.get(called)
        if notifier is None:
            return None
        members: JsonObject = {
            "kind": KIND,
            "notifier": called,
            "url": str(notifier.url.with_query(None)),
        }
        return TargetDescription(owner, StreamRef(Kind.INBOX, owner), members)


@frozen
class NotifierFeed:
    """What one notifier gets of one inbox."""

    kind: NotifierKind
    notifier: Notifier
    owner: str

    @property
    def address(self) -> Address:
        """The URL; trusted, because the operator configured it."""
        return Address(self.notifier.url, trusted=True)

    async def weigh(self, *, whole: bool) -> int:
        """Nothing: its requests are bounded."""
        del whole
        return 0

    @property
    def bounds(self) -> ReplayLimits:
        """The limits beyond which one list of open approvals replaces many single messages."""
        return _BOUNDS

    def wants(self, entry: Entry) -> bool:
        """Approvals that open or close, except those only paired devices may see."""
        return entry.type in _NOTIFIED and not is_for_paired(entry.data)

    def ends_with(self, entry: Entry) -> bool:
        """Never: an inbox has no last event."""
        del entry
        return False

    def is_over(self, cursor: Cursor) -> bool:
        """Never, for the same reason."""
        del cursor
        return False

    def split(self, wanted: tuple[LinkedEntry, ...]) -> list[tuple[LinkedEntry, ...]]:
        """One message for each entry."""
        return [(linked,) for linked in wanted]

    async def compose(
        self, together: tuple[LinkedEntry, ...], since: Cursor, cursor: Cursor
    ) -> DeliveryRequest:
        """The new state of one approval."""
        del since, cursor
        (linked,) = together
        envelope: JsonObject = orjson.loads(linked.entry.data)
        body: JsonObject = {"kind": "question", **_describe(envelope)}
        return self._pack(body, linked.entry.event_id)

    def find_acked(
        self, answer: bytes, together: tuple[LinkedEntry, ...], cursor: Cursor
    ) -> Cursor | None:
        """A 2xx answer confirms everything."""
        del answer, together
        return cursor

    async def compose_snapshot(self, why: str, since: Cursor) -> StateSnapshot:
        """The approvals open now; no request if there are none."""
        del why
        inbox = StreamRef(Kind.INBOX, self.owner)
        head = await self.kind.log.read_head(inbox)
        if head is None:
            return StateSnapshot(None, since, ends=False)
        open_: list[Json] = [
            _summarize(orjson.loads(view))
            for _, view in await self.kind.projections.read_inbox(self.owner)
            if not is_view_for_paired(view)
        ]
        cursor = end_of(head)
        if not open_:
            return StateSnapshot(None, cursor, ends=False)
        request = self._pack({"kind": "open", "questions": open_}, f"open.{cursor}")
        return StateSnapshot(request, cursor, ends=False)

    async def warn(self, reason: str, since_ms: int) -> None:
        """Records the warning in the operator's home session: the inbox is not the place to report its own failure."""
        message = f"notifier {self.notifier.name}: deliveries were given up ({reason})"
        warning = WarningRaised("notifier_given_up", message)
        key = f"{self.notifier.name} {self.owner} {since_ms}"
        await self.kind.home.record(self.kind.operator, warning, key=key)

    def _pack(self, body: JsonObject, delivery: str) -> DeliveryRequest:
        sent_s = self.kind.clock.now_ms() // 1000
        content = orjson.dumps({**body, "inbox": self.owner})
        return sign_request(self.notifier.secret, content, delivery, sent_s)


def _describe(envelope: JsonObject) -> JsonObject:
    said = object_at(envelope, "payload")
    decision, request = object_at(said, "decision"), object_at(said, "request")
    described: JsonObject = {"actionId": text_at(envelope, "actionId")}
    if decision:
        described |= {
            "state": text_at(decision, "outcome"),
            "decidedBy": text_at(decision, "decidedBy"),
        }
        return described
    expires_ms = whole_at(request, "expiresMs") or 0
    return {
        **described,
        "state": "pending",
        "title": text_at(request, "title"),
        "risk": text_at(request, "risk"),
        "expiresAt": format_ms(expires_ms),
    }


def _summarize(view: JsonObject) -> JsonObject:
    names = ("actionId", "state", "title", "risk", "expiresAt")
    return {name: text_at(view, name) for name in names}
