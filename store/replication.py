"""Whether acts wait for a replica at a primary: pure, from repeated INFO reports of the primary.

A primary that has lost its replicas may be the losing side of a failover, so acts wait there. A new replication id
proves nothing: a primary gets one when it restarts, and when its replicas have been away for ``repl-backlog-ttl``. A
promoted server is recognized by three things together: it is another process than the primary before, it continues
that one's history (``master_replid2``), and it already ran while that one was the primary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from passerelle.core.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

_PRIMARY: Final = "master"
_UPTIME_ERROR_S: Final = 2.0
"""``uptime_in_seconds`` is truncated to seconds, by a clock that is read ten times a second."""


@frozen
class ReplicationReport:
    """Fields of INFO ``server``, ``replication`` and ``stats``. Empty texts: not reported by the server."""

    is_primary: bool
    run_id: str
    uptime_s: int
    replication_id: str
    previous_id: str
    replicas: int
    syncs: int
    """How often a replica has attached since the server started."""


@frozen
class ReplicationView:
    """What is known of the primary at one address. Times are seconds of a monotonic clock."""

    has_replicas: bool = False
    """A replica was seen: acts wait for it, whether it is still there or not."""
    run_id: str = ""
    replication_id: str = ""
    seen_s: float = 0.0
    replica_run_id: str = ""
    """The run id of a server seen here while it was a replica."""
    syncs: int = 0
    alone_since_s: float | None = None
    """Since when it is promoted without an attached replica; None otherwise."""
    is_inherited: bool = False
    """This server was not asked yet: the rest is the view of the primary before it."""


def read_report(info: Mapping[str, str]) -> ReplicationReport:
    """The report from the fields of INFO."""
    return ReplicationReport(
        is_primary=info.get("role") == _PRIMARY,
        run_id=info.get("run_id", ""),
        uptime_s=int(info.get("uptime_in_seconds", "0")),
        replication_id=info.get("master_replid", ""),
        previous_id=info.get("master_replid2", ""),
        replicas=int(info.get("connected_slaves", "0")),
        syncs=int(info.get("sync_full", "0")) + int(info.get("sync_partial_ok", "0")),
    )


def observe(view: ReplicationView, report: ReplicationReport, now_s: float) -> ReplicationView:
    """The view after one more report."""
    if not report.is_primary:
        return replace(view, replica_run_id=report.run_id)
    seen = replace(
        view,
        run_id=report.run_id,
        replication_id=report.replication_id,
        seen_s=now_s,
        syncs=report.syncs,
        is_inherited=False,
    )
    if report.replicas:
        return replace(seen, has_replicas=True, alone_since_s=None)
    if is_promoted(view, report, now_s):
        return replace(seen, alone_since_s=now_s)
    if view.is_inherited:
        # Slots were moved to a server without replicas: it has lost nothing.
        return replace(seen, has_replicas=False, alone_since_s=None)
    stayed_alone = report.run_id == view.run_id and report.syncs == view.syncs
    return seen if stayed_alone else replace(seen, alone_since_s=None)


def is_promoted(view: ReplicationView, report: ReplicationReport, now_s: float) -> bool:
    """Whether the server was a replica of the last seen primary, and is a primary now."""
    if not report.run_id or report.run_id == view.run_id:
        return False
    if report.run_id == view.replica_run_id:
        return True
    continues = bool(report.previous_id) and report.previous_id == view.replication_id
    # With snapshots on disk a restarted primary names its own history here, too; but it started after it was last seen.
    return continues and report.uptime_s > now_s - view.seen_s + _UPTIME_ERROR_S


def inherit(before: ReplicationView) -> ReplicationView:
    """The assumed view of a server that takes over shards of another one, until it has reported."""
    return replace(before, alone_since_s=None, is_inherited=True)


def acts_alone(view: ReplicationView, after_s: float | None, now_s: float) -> bool:
    """Whether acts continue without a replica: ``after_s`` seconds after a promotion; None: never."""
    if view.alone_since_s is None or after_s is None:
        return False
    return now_s - view.alone_since_s >= after_s
