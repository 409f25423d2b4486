"""Bundles as a caller gets them over ``/v1``, and what stands in them."""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from passerelle.core.ids import ALL_SHARDS
from passerelle.core.wire.json import JsonObject
from passerelle.store.store import Store, StoreSettings
from tests.integration.callers.rig import Instance, Rig
from tests.integration.devices.asking import ask, bearer, make_answer, say
from tests.support.paired_device import PairedDevice, sign_decision

PATHS: Final = {"evidence": "", "replay": "/replay", "review": "/review"}
Answer = dict[str, Any]
_LATER_MS: Final = 1 << 45


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle as it was given out: the answer of the export, and its file."""

    told: Answer
    content: bytes

    @property
    def lines(self) -> list[bytes]:
        return gzip.decompress(self.content).split(b"\n")[:-1]

    @property
    def manifest(self) -> Answer:
        return cast("Answer", orjson.loads(self.lines[0]))

    def list(self, kind: str) -> list[Answer]:
        """What the entries of a kind say."""
        named = self.manifest["entries"]
        return [
            orjson.loads(line)
            for entry, line in zip(named, self.lines[1:-1], strict=True)
            if entry["kind"] == kind
        ]


async def export(at: Instance, kind: str, of: JsonObject, who: str = "ada") -> Bundle:
    """Exports, and reads the file in small parts."""
    answer = await at.http.post(f"/v1/evidence{PATHS[kind]}", json=of, headers=bearer(who))
    assert answer.status_code == 201, answer.text
    told = cast("Answer", answer.json())
    task = {"taskId": told["subject"]} if told["scope"] == "task" else {}
    content, place = b"", task or {"sessionId": told["sessionId"]}
    while len(content) < told["size"]:
        part = await at.http.get(
            f"/v1/evidence/{told['evidenceId']}",
            params={**place, "offset": len(content), "limit": 4096},
            headers=bearer(who),
        )
        assert part.status_code == 200, part.text
        content += base64.b64decode(part.json()["content"])
    return Bundle(told, content)


async def refuse(at: Instance, of: JsonObject, who: str = "ada") -> Answer:
    """The problem that an export ends with."""
    answer = await at.http.post("/v1/evidence", json=of, headers=bearer(who))
    assert answer.status_code >= 400, answer.text
    return cast("Answer", {**answer.json(), "status": answer.status_code})


async def approve(at: Instance, risk: str = "high") -> tuple[JsonObject, PairedDevice]:
    """A question that a paired device of Ada's has answered with its signature."""
    phone = PairedDevice(at.http)
    await phone.pair("ada-key")
    view = await ask(at, risk)
    won = await say(at, phone.headers, sign_decision(phone, make_answer(view)))
    assert won.status_code == 200, won.text
    return view, phone


def list_scopes(view: JsonObject) -> list[JsonObject]:
    """Each scope that a question lies in."""
    session, thread, turn = view["sessionId"], view["threadId"], view["turnId"]
    return [
        {"taskId": view["taskId"]},
        {"sessionId": session, "turnId": turn},
        {"threadId": thread, "turnId": turn},
        {"threadId": thread},
        {"sessionId": session},
    ]


async def leave(rig: Rig) -> list[str]:
    """Has every session leave the engine that has ended."""
    left: list[str] = []
    async with await Store.open(StoreSettings(rig.url, rig.folder / "blobs")) as store:
        for shard, sessions in (await store.ended_sessions.find(ALL_SHARDS, _LATER_MS)).items():
            names = [one.session for one in sessions]
            archived = await store.archiver.archive(shard, names)
            assert archived.sessions == names
            left += names
    return left
