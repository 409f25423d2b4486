"""The peer is done and the task is not: its driver stays until what is missing has come, or never will (I5).

What the peer said last stands in the blob store and in the record, so the peer is not needed any more, and whoever
takes the run up goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import orjson

from passerelle.core.errors import StoreUnavailable
from passerelle.gateway.delegation.completion import go_on

if TYPE_CHECKING:
    from passerelle.core.json import JsonObject
    from passerelle.gateway.delegation.driver import Driver


async def reconcile(driver: Driver, withheld: str) -> None:
    """One look at what is missing; ends the task if nothing is.

    Raises:
        StoreUnavailable: the frame that was kept back cannot be read now.
    """
    run = driver.run
    content = await run.blobs.get(run.sight.task.shard, withheld)
    if content is None:
        raise StoreUnavailable(f"blob {withheld[:12]} is missing", "no")
    frame = cast("JsonObject", orjson.loads(content))
    await driver.patiently(lambda step: go_on(step, frame))
