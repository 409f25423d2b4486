"""A process with an embedded engine, for tests that kill it: ``python -m tests.support.engine_host DIR [GUARD]``.

Prints the engine's process id and socket, then the number of each event after its append was acknowledged.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path

from passerelle.core.batch import Again, Appended, Batch, IdempotencyRow
from passerelle.core.ids import Shard
from passerelle.store.engine import EmbeddedEngine
from passerelle.store.engine_process import EngineSettings, GuardMode
from passerelle.store.store import Store, StoreSettings
from tests.support.batches import EPOCH, event, make_place

SHARD = Shard(7)
WRITERS = 8


async def main(directory: Path, guard: GuardMode | None) -> None:
    """Runs until it is killed."""
    engine = await EmbeddedEngine.start(EngineSettings(directory / "data", guard=guard))
    store = await Store.open(StoreSettings(engine.url, directory / "blobs"))
    at = make_place(SHARD)
    sys.stdout.write(f"{engine.pid} {engine.socket_path} {at.session}\n")
    sys.stdout.flush()
    numbers = itertools.count(1)

    async def write() -> None:
        for number in numbers:
            fact = event(f"ev_host_{number}")
            row = IdempotencyRow(fact.event_id, "d", b"", 600_000)
            batch = Batch(at.session, fact.event_id, 0, EPOCH, events=(fact,), idem=row)
            if isinstance(await store.log.append(batch), Appended | Again):
                sys.stdout.write(f"{number}\n")
                sys.stdout.flush()

    await asyncio.gather(*(write() for _ in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), GuardMode(sys.argv[2]) if len(sys.argv) > 2 else None))
