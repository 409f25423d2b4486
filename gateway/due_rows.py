"""Maps each kind of due row to its handler (I9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from passerelle.channels.links import ROW as LINK_ROW
from passerelle.control.cancellation import SUBTREE
from passerelle.control.creation import PREPARE
from passerelle.control.edges import EDGE, UNBLOCK
from passerelle.control.outputs import OUTPUT_ROW
from passerelle.control.subtrees import TREE
from passerelle.core.job.item_name import JOB
from passerelle.delegation.jobs.schedules import SCHEDULE
from passerelle.delegation.runs.deadlines import STOP_ROW
from passerelle.delegation.runs.delivery import SEND_ROW
from passerelle.delegation.runs.holds import QUEUED
from passerelle.delegation.runs.remote_drivers import SERVE_ROW
from passerelle.permission_bridge.answers.action_rows import (
    CLEAR,
    ESCALATE,
    EXPIRE,
    MINT,
    NOTIFY,
    RETURN,
    STALLED,
)
from passerelle.permission_bridge.devices.bundles import Bundles
from passerelle.store.pushes import ROW as BUNDLE_ROW
from passerelle.store.uploads import ROW as UPLOAD_ROW
from passerelle.webhooks.deliveries import ROW as TARGET_ROW

if TYPE_CHECKING:
    from passerelle.channels.links import StoredLinkFacts
    from passerelle.core.ports.due import DropRow
    from passerelle.delegation.duties.due import Handler
    from passerelle.delegation.runs.deadlines import Deadlines
    from passerelle.gateway.parts import Parts
    from passerelle.gateway.reverse.routing import Routing
    from passerelle.permission_bridge.devices.delivery import Forwarding
    from passerelle.webhooks.deliveries import Deliveries


def list_handlers(
    parts: Parts,
    deadlines: Deadlines,
    forwarding: Forwarding,
    deliveries: Deliveries,
    links: StoredLinkFacts,
    routing: Routing,
    drop: DropRow,
) -> dict[str, Handler]:
    """The handlers by kind; the duties handle leases and adoptions themselves."""
    linking, outputs = parts.tasks.linking, parts.tasks.outputs
    preparing = parts.tasks.starting.preparing
    return {
        "timeout": deadlines.on_timeout,
        "idle": deadlines.on_idle,
        EXPIRE: deadlines.on_expire,
        ESCALATE: deadlines.on_escalate,
        RETURN: deadlines.on_return,
        NOTIFY: forwarding.on_notify,
        BUNDLE_ROW: Bundles(forwarding).on_bundle,
        STALLED: forwarding.on_stalled,
        CLEAR: forwarding.on_clear,
        MINT: deadlines.on_mint,
        STOP_ROW: deadlines.on_stop,
        "cancel": deadlines.on_cancel,
        SUBTREE: lambda shard, row, _now_ms: parts.tasks.cancelling.on_due(shard, row, drop),
        TREE: lambda shard, row, _now_ms: parts.subtrees.on_due(shard, row, drop),
        "input": deadlines.on_input,
        "retry": deadlines.on_retry,
        SEND_ROW: deadlines.on_send,
        QUEUED: lambda shard, row, now_ms: parts.turn_queues.on_due(shard, row, now_ms, drop),
        SERVE_ROW: routing.on_due,
        PREPARE: lambda shard, row, _now_ms: preparing.on_due(shard, row, drop),
        EDGE: lambda _shard, row, _now_ms: linking.finish(row, drop),
        UNBLOCK: lambda _shard, row, _now_ms: linking.unblock(row, drop),
        OUTPUT_ROW: lambda _shard, row, now_ms: outputs.expire(row, now_ms, drop),
        TARGET_ROW: deliveries.on_due,
        SCHEDULE: lambda shard, row, now_ms: parts.schedules.runner.on_due(
            shard, row, now_ms, drop
        ),
        LINK_ROW: links.on_due,
        JOB: lambda shard, row, now_ms: parts.schedules.items.on_due(shard, row, now_ms, drop),
        UPLOAD_ROW: lambda _shard, row, _now_ms: parts.dispatch.uploads.expire(row),
    }
