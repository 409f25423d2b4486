"""The values of a templated turn: everything in which turns of one shape differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from passerelle.core.batch import EntityKind, EntityRef
from passerelle.core.decision import Held
from passerelle.core.session.thread import ThreadRecord, begin_turn
from passerelle.core.wire.times import format_ms
from passerelle.delegation.runs.templates import KnownThread, split_thread
from passerelle.delegation.runs.turn_request import TurnRequest
from passerelle.runtime.records.message_summary import describe, digest_request
from passerelle.runtime.records.places import Place, hash_key
from passerelle.store.wire_template import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from passerelle.core.ids import Shard
    from passerelle.webhooks.push_configs import SealedPush

FREE: Final = frozenset({0, 1, 2, 3, *range(12, 23)})
"""Positions of values of any length: the message, the thread, the push config, the texts, the name of the caller and
the contexts.
"""


def begin_known(held: Held, turn_id: str, agent: str, fresh: str) -> KnownThread | None:
    """The thread with the new turn begun in it, None for a new one; ``fresh`` is for an agent that it does not know."""
    thread = held.record
    if not isinstance(thread, ThreadRecord):
        return None
    remote = thread.remotes.get(agent) or fresh
    return KnownThread(begin_turn(thread, turn_id, agent, remote), held.stamp)


def locate_thread(thread: ThreadRecord, shard: Shard) -> Place:
    """The place of a thread."""
    ref = EntityRef(EntityKind.THREAD, thread.thread_id)
    return Place(shard, thread.context_id, ref, EntityRef(EntityKind.SESSION, thread.session_id))


def list_values(
    request: TurnRequest,
    place: Place,
    message: bytes,
    now_ms: int,
    remote_context_id: str,
    known: KnownThread | None,
    minted: Sequence[str],
    push: SealedPush | None,
) -> tuple[bytes, ...]:
    """The values in which turns of a shape differ, as written; minted values come last."""
    principal, command, plan, idem = (
        request.principal,
        request.command,
        request.plan,
        request.idem,
    )
    words, trace, idle_ms = describe(command), plan.trace, plan.policy.idle_timeout_ms
    at = format_ms(now_ms)
    before, behind = (b"", b"") if known is None else split_thread(known.record, at)
    texts = (
        place.thread.id,
        place.session.id,
        f"{{{place.shard.tag}}}",
        at,
        f"{now_ms + plan.policy.total_timeout_ms}",
        "" if idle_ms is None else f"{now_ms + idle_ms}",
        trace.trace_id if trace else "",
        trace.span_id if trace else "",
        words.objective,
        words.title,
        words.preview,
        str(command.message["messageId"]),
        (trace.state or "") if trace else "",
        principal.id,
        remote_context_id,
        "" if command.context_id is None else place.context_id,
        "" if known is None else f"{known.stamp.version}",
        "" if known is None else known.stamp.op,
        "" if push is None else push.name.config_id,
        principal.key,
        "" if idem is None else hash_key(principal, idem),
        "" if idem is None else digest_request(command),
        *minted,
    )
    return (message, before, behind, b"" if push is None else push.stored, *quote(texts))
