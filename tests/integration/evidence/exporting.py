"""Bundles as a caller gets them over ``/v1``, and their contents."""

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
    """An exported bundle: the response of the export, and the file."""

    response: Answer
    content: bytes

    @property
    def lines(self) -> list[bytes]:
        return gzip.decompress(self.content).split(b"\n")[:-1]

    @property
    def manifest(self) -> Answer:
        return cast("Answer", orjson.loads(self.lines[0]))

    def list(self, kind: str) -> list[Answer]:
        """Parsed entries of a kind."""
        named = self.manifest["entries"]
        return [
            orjson.loads(line)
            for entry, line in zip(named, self.lines[1:-1], strict=True)
            if entry["kind"] == kind
        ]


async def export(at: Instance, kind: str, of: JsonObject, who: str = "ada") -> Bundle:
    """Exports a scope, and downloads the file in small parts."""
    answer = await at.http.post(f"/v1/evidence{PATHS[kind]}", json=of, headers=bearer(who))
    assert answer.status_code == 201, answer.text
    response = cast("Answer", answer.json())
    task = {"taskId": response["subject"]} if response["scope"] == "task" else {}
    content, place = b"", task or {"sessionId": response["sessionId"]}
    while len(content) < response["size"]:
        part = await at.http.get(
            f"/v1/evidence/{response['evidenceId']}",
            params={**place, "offset": len(content), "limit": 4096},
            headers=bearer(who),
        )
        assert part.status_code == 200, part.text
        content += base64.b64decode(part.json()["content"])
    return Bundle(response, content)


async def refuse(at: Instance, of: JsonObject, who: str = "ada") -> Answer:
    """Returns the problem of an export that fails."""
    answer = await at.http.post("/v1/evidence", json=of, headers=bearer(who))
    assert answer.status_code >= 400, answer.text
    return cast("Answer", {**answer.json(), "status": answer.status_code})


async def approve(at: Instance, risk: str = "high") -> tuple[JsonObject, PairedDevice]:
    """Opens an approval and allows it from a paired device of Ada's, with a signature."""
    phone = PairedDevice(at.http)
    await phone.pair("ada-key")
    view = await ask(at, risk)
    answered = await say(at, phone.headers, sign_decision(phone, make_answer(view)))
    assert answered.status_code == 200, answered.text
    return view, phone


def list_scopes(view: JsonObject) -> list[JsonObject]:
    """Every scope that contains the approval."""
    session, thread, turn = view["sessionId"], view["threadId"], view["turnId"]
    return [
        {"taskId": view["taskId"]},
        {"sessionId": session, "turnId": turn},
        {"threadId": thread, "turnId": turn},
        {"threadId": thread},
        {"sessionId": session},
    ]


async def archive_ended(rig: Rig) -> list[str]:
    """Archives every session that has ended; returns their ids."""
    left: list[str] = []
    async with await Store.open(StoreSettings(rig.url, rig.folder / "blobs")) as store:
        for shard, sessions in (await store.ended_sessions.find(ALL_SHARDS, _LATER_MS)).items():
            names = [one.session for one in sessions]
            archived = await store.archiver.archive(shard, names)
            assert archived.sessions == names
            left += names
    return left
