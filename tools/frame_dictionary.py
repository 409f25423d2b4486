"""Makes a dictionary for frames of the archive: ``python -m tools.frame_dictionary``, by hand, when their form changes.

It plays every kind of work of the bench at a gateway of its own, and trains on the sessions that come of it. Ids are
drawn, so no two runs make the same bytes. The file is named by its number. ``store/archive/compression.py`` says which
one frames are written with; those before it stay.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.kinds import MIXED_ORDER, RoundPlan, WorkKind, WorkMix, make_scenes
from bench.testbed import GatewaySetup, open_testbed
from passerelle.core.ids import ALL_SHARDS
from passerelle.store.archive.archiver import split_into_segments
from passerelle.store.archive.compression import zstd
from passerelle.store.archive.frame import join_frame
from passerelle.store.archive.leaving_session import read_leaving
from passerelle.store.store import Store, StoreSettings

_BYTES: Final = 64 * 1024
_SECONDS: Final = 3.0
_OF_A_KIND: Final = 200
"""Sessions: no kind of work is to fill the dictionary alone."""
_LONGEST: Final = 128 * 1024
_LATEST_MS: Final = 1 << 50
_FOLDER: Final = Path("store/archive/dictionaries")


async def play(scene: WorkMix) -> list[bytes]:
    """Sessions of a kind of work, in their plain form."""
    found = list[bytes]()
    for kind in scene.kinds:
        async with open_testbed(scene.setting) as testbed:
            order = replace(kind.order, seconds=_SECONDS)
            await testbed.run(order, testbed.ours, as_agent=kind.as_agent, lead=kind.lead)
            url = f"unix://{testbed.ours.find_endpoint().name}"
            store = await Store.open(StoreSettings(url, testbed.ours.process.data_dir / "blobs"))
            try:
                found += await read_sessions(store)
            finally:
                await store.close()
        sys.stdout.write(f"{kind.name}: {len(found)} sessions\n")
    return found


async def read_sessions(store: Store) -> list[bytes]:
    """Some of those in which nothing is open."""
    ended = await store.ended_sessions.find(ALL_SHARDS, _LATEST_MS)
    plain = list[bytes]()
    for shard, sessions in ended.items():
        for part in split_into_segments(sessions):
            names = {shard: [one.session for one in part]}
            plain += [join_frame(one.frame) for one in await read_leaving(store.nodes, names, None)]
    short = [one for one in plain if len(one) <= _LONGEST]
    return short[:: len(short) // _OF_A_KIND + 1]


async def train() -> zstd.ZstdDict:
    """A dictionary of all kinds of work."""
    mixed = WorkMix(GatewaySetup("echo"), (WorkKind("conversations", MIXED_ORDER, None),))
    samples = list[bytes]()
    for scene in (mixed, *make_scenes(RoundPlan(1, _SECONDS))):
        samples += await play(scene)
    return zstd.train_dict(samples, _BYTES)


if __name__ == "__main__":
    made = asyncio.run(train())
    place = _FOLDER / f"{made.dict_id}.zdict"
    _FOLDER.mkdir(exist_ok=True)
    place.write_bytes(made.dict_content)
    sys.stdout.write(f"frame_dictionary: {place}, {len(made.dict_content)} bytes\n")
