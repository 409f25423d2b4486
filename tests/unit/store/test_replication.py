"""Which primaries are known as promoted, and where acts wait: pure, over one report after another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from passerelle.store.replication import (
    ReplicationReport,
    ReplicationView,
    acts_alone,
    inherit,
    observe,
    read_report,
)

AFTER_S = 30.0
FIRST = ReplicationReport(
    is_primary=True,
    run_id="run-a",
    uptime_s=500,
    replication_id="id-a",
    previous_id="0" * 40,
    replicas=1,
    syncs=1,
)
"""The primary, with its replica."""
ALONE = replace(FIRST, replicas=0)
PROMOTED = ReplicationReport(
    is_primary=True,
    run_id="run-b",
    uptime_s=400,
    replication_id="id-b",
    previous_id="id-a",
    replicas=0,
    syncs=0,
)
BEFORE = replace(PROMOTED, is_primary=False, replication_id="id-a", previous_id="0" * 40)
"""The same server while it was a replica."""


def look(*reports: ReplicationReport, view: ReplicationView | None = None) -> ReplicationView:
    """What is known after reports, ten seconds apart from 100 s on."""
    known = view or ReplicationView()
    for at, report in enumerate(reports):
        known = observe(known, report, 100.0 + 10 * at)
    return known


def waits(view: ReplicationView, now_s: float = 1_000.0) -> bool:
    return view.has_replicas and not acts_alone(view, AFTER_S, now_s)


def test_server_without_replicas_is_never_waited_for() -> None:
    assert not waits(look(ALONE))
    assert not waits(look(replace(ALONE, syncs=0), replace(ALONE, syncs=0)))


def test_promoted_server_is_waited_for_only_for_a_while() -> None:
    view = look(FIRST, PROMOTED, PROMOTED, PROMOTED)
    assert view.alone_since_s == 110.0
    assert waits(view, 139.0)
    assert not waits(view, 140.0)
    assert not acts_alone(view, None, 10_000.0), "no time: it is waited for without end"


def test_backlog_that_ends_at_the_promoted_server_changes_nothing() -> None:
    other_id = replace(PROMOTED, replication_id="id-c", previous_id="0" * 40)
    assert not waits(look(FIRST, PROMOTED, other_id, other_id))


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(ALONE, id="lost its replicas"),
        pytest.param(replace(ALONE, replication_id="id-z"), id="freed its backlog"),
        pytest.param(
            replace(ALONE, run_id="run-z", replication_id="id-z", uptime_s=3),
            id="restarted from its log",
        ),
        pytest.param(
            replace(ALONE, run_id="run-z", replication_id="id-z", previous_id="id-a", uptime_s=10),
            id="restarted from a snapshot right after it was seen",
        ),
        pytest.param(replace(PROMOTED, previous_id="id-x"), id="continues another history"),
        pytest.param(replace(PROMOTED, run_id="run-a"), id="is the same process"),
        pytest.param(replace(PROMOTED, run_id=""), id="does not say which process it is"),
        pytest.param(replace(PROMOTED, previous_id=""), id="does not say what it continues"),
    ],
)
def test_primary_that_was_not_seen_promoted_is_waited_for_without_end(
    second: ReplicationReport,
) -> None:
    assert waits(look(FIRST, second, second), 100_000.0)


def test_server_that_was_seen_as_a_replica_is_promoted_whatever_was_missed() -> None:
    view = look(FIRST, BEFORE, replace(PROMOTED, previous_id="id-unseen"))
    assert not waits(view)


def test_replica_itself_is_no_promoted_server() -> None:
    assert waits(look(FIRST, BEFORE, BEFORE), 100_000.0)


def test_replica_that_attaches_is_waited_for_again_even_if_it_was_not_seen() -> None:
    attached = replace(PROMOTED, replicas=1, syncs=1)
    assert waits(look(FIRST, PROMOTED, attached), 100_000.0)
    assert waits(look(FIRST, PROMOTED, attached, PROMOTED), 100_000.0)
    gone_again = replace(PROMOTED, syncs=1)
    assert waits(look(FIRST, PROMOTED, gone_again), 100_000.0)


def test_server_that_serves_the_shards_of_another_is_waited_for_until_it_was_asked() -> None:
    heir = inherit(look(FIRST))
    assert waits(heir)
    assert not waits(look(PROMOTED, view=heir)), "promoted, and the time is over"
    assert waits(look(PROMOTED, view=heir), 100.0 + AFTER_S - 1)
    moved_to = replace(PROMOTED, previous_id="0" * 40)
    assert not waits(look(moved_to, view=heir)), "slots were moved to a server without replicas"
    assert waits(look(replace(moved_to, replicas=1), view=heir))


def test_report_is_read_from_info() -> None:
    info = {
        "role": "master",
        "run_id": "run-b",
        "uptime_in_seconds": "400",
        "master_replid": "id-b",
        "master_replid2": "id-a",
        "connected_slaves": "0",
        "sync_full": "1",
        "sync_partial_ok": "2",
    }
    assert read_report(info) == replace(PROMOTED, syncs=3)
    assert read_report({}) == ReplicationReport(
        is_primary=False,
        run_id="",
        uptime_s=0,
        replication_id="",
        previous_id="",
        replicas=0,
        syncs=0,
    )
