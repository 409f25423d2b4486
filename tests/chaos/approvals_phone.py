"""A phone with push notifications, and its push service."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import httpx
import orjson

from tests.support.paired_device import PairedDevice

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject


@dataclass(frozen=True, slots=True)
class Pushes:
    """The push service: ``made`` is the subscription of its one browser."""

    made: dict[str, str]

    @property
    def origin(self) -> str:
        """Its origin."""
        return self.made["origin"]

    async def list_topics(self, action: str) -> list[str]:
        """The topics of accepted pushes about an approval while it was open."""
        async with httpx.AsyncClient(base_url=self.origin, trust_env=False) as http:
            seen = cast("list[JsonObject]", (await http.get("/seen")).json())
        return [
            str(one["topic"])
            for one in seen
            if isinstance(said := one["message"], dict)
            and (said["actionId"], said["state"]) == (action, "pending")
        ]


@asynccontextmanager
async def run_pushes() -> AsyncGenerator[Pushes]:
    """A push service in a separate process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.push_service", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield Pushes(orjson.loads(await asyncio.wait_for(process.stdout.readline(), 60)))
    finally:
        process.kill()
        await process.wait()


async def pair_phone(url: str, key: str, pushes: Pushes) -> None:
    """Pairs a phone with its owner and subscribes it to pushes."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as http:
        phone = PairedDevice(http)
        await phone.pair(key)
        keys: JsonObject = {"p256dh": pushes.made["p256dh"], "auth": pushes.made["auth"]}
        wanted: JsonObject = {
            "endpoint": pushes.made["endpoint"],
            "expirationTime": None,
            "keys": keys,
        }
        path = f"/v1/devices/{phone.device_id}/push"
        taken = await http.put(path, json={"subscription": wanted}, headers=phone.headers)
        assert taken.status_code == httpx.codes.OK, taken.text
