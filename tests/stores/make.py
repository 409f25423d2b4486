"""``python -m tests.stores.make``: the store of this version's schema number, with something of every kind in it.

For whoever changes what is stored: raise ``SCHEMA`` in ``store/keys.py`` and run it; while the number is in no
release, only run it.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Final, cast

from passerelle.core.wire.json import JsonObject
from passerelle.store.engine_binary import find_engine
from passerelle.store.keys import SCHEMA
from tests.integration.callers.rig import Instance, run_rig
from tests.integration.devices.asking import ADA, BOB, ask, bearer, make_answer, say
from tests.stores.dump import FOLDER, find_dump, write_dump
from tests.support.engine import run_server
from tests.support.paired_device import PairedDevice
from tests.support.waiting import wait_until
from tools.stored_forms import digest_forms

SENDS = ("hello", "message well", "chunks 3", "big", "two-artifacts", "fail", "ask Which one?")
"""What the scripted agent makes of these: an end of each kind, content in blobs, and a question that stays open."""

QUESTIONS: Final = 4
"""That ``fill`` leaves: two answered and two open."""


async def fill(at: Instance) -> None:
    """Has a person and a device do a little of everything."""
    contexts: list[str] = []
    for text in SENDS:
        answer = await at.send("ada-key", text)
        assert answer.status_code == 200, answer.text
        result = cast("JsonObject", answer.json()["result"])
        (said,) = (cast("JsonObject", one) for one in result.values())
        contexts.append(str(said["contextId"]))
    again = at.message("hello again")
    cast("JsonObject", again["message"])["contextId"] = contexts[0]
    assert (await at.call("ada-key", "SendMessage", again)).status_code == 200
    device = PairedDevice(at.http)
    await device.pair("ada-key")
    for option in ("yes", "no"):
        said_so = await say(at, bearer("ada"), make_answer(await ask(at), option))
        assert said_so.status_code == 200, said_so.text
    await ask(at)
    assert (await at.send("bob-key", "hello")).status_code == 200
    muted = await at.http.put(
        "/v1/mutes/echo", json={"minutes": 30}, headers=bearer("ada") | {"Idempotency-Key": "mute"}
    )
    assert muted.is_success, muted.text


async def settle(at: Instance) -> None:
    """Waits until what follows from all that is stored as well."""

    async def is_listed() -> bool:
        pending = await at.http.get("/v1/approvals", headers=bearer("ada"))
        tasks = (await at.call("ada-key", "ListTasks", {})).json()["result"]["tasks"]
        return len(pending.json()["pending"]) == QUESTIONS - 2 and len(tasks) == len(SENDS) + 3

    await wait_until(is_listed, 20, "lists and inboxes are written")


async def make(path: Path) -> None:
    """Writes the store."""
    binary = find_engine(None)
    with run_server(binary) as server, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with run_rig(server.url, folder) as rig:
            at = await rig.start(clients=[ADA, BOB])
            await fill(at)
            await settle(at)
        write_dump(server.url, folder / "blobs", path)


def note_forms() -> None:
    """Notes which forms the number stands for."""
    path = FOLDER / "forms.json"
    known = cast("dict[str, str]", json.loads(path.read_text())) if path.exists() else {}
    path.write_text(json.dumps({**known, f"{SCHEMA}": digest_forms()}, indent=1) + "\n")


if __name__ == "__main__":
    target = find_dump(f"schema-{SCHEMA}")
    asyncio.run(make(target))
    note_forms()
    print(f"{target.name}: {target.stat().st_size} bytes")  # noqa: T201  a command says what it did
