"""The first append that the store refuses logs the reason: an operator has no other source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from passerelle.core.batch import Again, Appended, Batch
from passerelle.core.errors import StoreUnavailable, Wrote
from passerelle.core.ids import Shard
from passerelle.runtime.common.clock import SystemClock, SystemIds
from passerelle.runtime.observability.metrics import Metrics
from passerelle.runtime.observability.outages import Outages
from passerelle.runtime.records.writes import Writes
from passerelle.store.store import Store, StoreSettings
from tests.support.batches import EPOCH, event, make_place, operation
from tests.support.engine import ask, redis_on_path, run_server
from tests.support.harness import Harness

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("EVC-19")
async def test_the_first_append_that_the_server_refuses_logs_the_reason(tmp_path: Path) -> None:
    binary, at = redis_on_path(), make_place()
    assert binary is not None, "redis-server is not on PATH"
    batch = Batch(
        at.session, operation(), 0, EPOCH, entities=(at.write(),), events=(event(), event())
    )
    with run_server(binary) as server, capture_logs() as said:
        ask(server.url, "ACL", "SETUSER", "psr", "on", ">pw", "~*", "&*", "+@all", "-pubsub")
        url = server.url.replace("unix://", "unix://psr:pw@")
        async with await Store.open(StoreSettings(url, tmp_path)) as store:
            outages = Outages(store.log, Metrics(), structlog.get_logger())
            writes = Writes(store.log, SystemClock(), SystemIds(), "rt", tally=outages.tally)
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match="run this command"):
                    await writes.append(batch, feed=False)
            assert await store.log.read_page(at.stream, 0) == [], "nothing is half-written"
    (away,) = [line for line in said if line["event"] == "store.unavailable"]
    assert "run this command" in away["reason"]


@pytest.mark.parametrize(
    ("wrote", "pause_s", "counted"),
    [
        ("unknown", 0.0, ["unavailable", "again"]),
        ("unknown", None, ["unavailable"]),
        ("no", 0.0, ["unavailable"]),
    ],
)
async def test_only_a_caller_that_cannot_repeat_retries_an_append_of_unknown_outcome(
    harness: Harness, wrote: Wrote, pause_s: float | None, counted: list[str]
) -> None:
    at, tallied, woken = make_place(), list[str](), list[Shard]()

    def tally(result: str, _seconds: float, _why: str) -> None:
        tallied.append(result)

    writes = replace(harness.parts.writes, tally=tally, wake_duties=woken.append)
    batch = Batch(at.session, operation(), 0, EPOCH, entities=(at.write(),), events=(event(),))

    async def lose_the_reply(_batch: Batch) -> None:
        harness.log.after_append = None
        raise StoreUnavailable("no reply came", wrote)

    harness.log.after_append = lose_the_reply
    if len(counted) > 1:
        assert await writes.append(batch, feed=True, pause_s=pause_s) == Again(None)
    else:
        with pytest.raises(StoreUnavailable):
            await writes.append(batch, feed=True, pause_s=pause_s)
    assert tallied == counted
    assert len(await harness.store.log.read_page(at.stream, 0)) == 1
    assert woken == [], "no duty is woken for a write of unknown outcome; its next round finds it"
    quiet, urgent = make_place(), make_place()
    for other in (quiet, urgent):
        fresh = Batch(
            other.session, operation(), 0, EPOCH, entities=(other.write(),), events=(event(),)
        )
        stored = await writes.append(fresh, feed=other is urgent, pause_s=pause_s)
        assert isinstance(stored, Appended)
    assert (tallied[-1], woken) == ("appended", [urgent.shard])
