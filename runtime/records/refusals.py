"""Records refused answers as facts (CHN-6), and turns recorded failures of turns into the errors callers get.

An unauthorized answer leaves a trace: at most one fact for each device, approval and minute; the next fact counts the
refusals in between. These facts change no record: a refused answer has no effect.

A turn without an answer is explained from its recorded error, also after a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from passerelle.core.batch import IdempotencyRow
from passerelle.core.errors import (
    Forbidden,
    InvalidAgentResponse,
    InvalidInput,
    PasserelleError,
    PeerBusy,
    PeerRefused,
    PeerUnavailable,
    StaleAnswer,
    StoreUnavailable,
)
from passerelle.core.events import Fact
from passerelle.core.ids import derive_id, shard_of
from passerelle.core.payloads.approval import ChannelPermissionReturned
from passerelle.runtime.records.writes import AppendOptions

if TYPE_CHECKING:
    from passerelle.core.approval.record import ActionRecord
    from passerelle.core.decision import Decision
    from passerelle.core.errors import CallerError
    from passerelle.core.facts import ErrorDetail
    from passerelle.core.principal import Principal
    from passerelle.core.task.record import TaskRecord
    from passerelle.runtime.records.writes import Writes

MINUTE_MS: Final = 60_000
RECORDED: Final = (Forbidden, StaleAnswer, InvalidInput)
"""Refusals that are recorded; being late is no violation."""
_MOST: Final = 1_024


@dataclass(slots=True)
class Refusals:
    """Records refused answers, and counts those that follow too soon after another."""

    writes: Writes
    _counts: OrderedDict[str, int] = field(default_factory=OrderedDict["str", "int"])

    async def record(self, who: Principal, action: ActionRecord, why: CallerError) -> None:
        """Records a refusal, once a minute; a failed write does not change that the answer is refused."""
        device = who.device or ""
        source = derive_id(
            "rf", shard_of(action.request.action_id), action.request.action_id, who.key, device
        )
        minute = self.writes.clock.now_ms() // MINUTE_MS
        key = f"{source} {minute}"
        count = self._counts.pop(source, 0) + 1
        said = ChannelPermissionReturned(
            direction="answer",
            source="auth_failure" if isinstance(why, Forbidden) else "answer",
            accepted=False,
            outcome="refused",
            attempts=count,
            channel_id=who.device,
            reason=why.stable_code,
            principal=who.id,
        )
        row = IdempotencyRow(key, key, b"", 2 * MINUTE_MS)

        def body(decision: Decision) -> AppendOptions:
            decision.add([Fact(action.scope, said)])
            return AppendOptions(idem=row)

        try:
            written = await self.writes.decide(action.scope.session_id, [], body)
        except StoreUnavailable:
            return
        if getattr(written, "repeated", None) is not None:
            self._keep(source, count)

    def _keep(self, source: str, count: int) -> None:
        self._counts[source] = count
        while len(self._counts) > _MOST:
            self._counts.popitem(last=False)


_BUSY_S: Final = 1
"""Retry-After for a repeat under the same key: a message under another key may succeed."""


def explain_failure(record: TaskRecord | None) -> PasserelleError:
    """The error of a task that ended before callers saw it."""
    failure = record.last_error if record is not None else None
    return PeerUnavailable("the turn has no answer") if failure is None else make_error(failure)


def make_error(failure: ErrorDetail) -> PasserelleError:
    """The caller's error for a recorded failure of a peer."""
    if failure.code == PeerRefused.code and failure.native is not None:
        native, details = int(failure.native), failure.details or ()
        return PeerRefused(failure.message, native, failure.http_status, details)
    if failure.code == InvalidAgentResponse.code:
        return InvalidAgentResponse(failure.message)
    if failure.code == PeerBusy.code:
        return PeerBusy(failure.message, retry_after_s=_BUSY_S)
    return PeerUnavailable(failure.message)
