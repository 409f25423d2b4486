"""The first append that the store does not take says why: an operator has nothing else to go by."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from passerelle.core.batch import Batch
from passerelle.core.errors import StoreUnavailable
from passerelle.gateway.clock import SystemClock, SystemIds
from passerelle.gateway.control.writes import Writes
from passerelle.gateway.metrics import Metrics
from passerelle.gateway.outages import Outages
from passerelle.store.store import Store, StoreSettings
from tests.support.batches import EPOCH, event, make_place, operation
from tests.support.engine import ask, redis_on_path, run_server

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("EVC-19")
async def test_the_first_append_that_the_server_refuses_says_why(tmp_path: Path) -> None:
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
    (away,) = [line for line in said if line["event"] == "store.away"]
    assert "run this command" in away["reason"]
