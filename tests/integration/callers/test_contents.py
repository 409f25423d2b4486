"""The whole content of an approval can be read, however large, by those who see it and by no other caller (P6)."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest

from passerelle.core.wire.canonical import canonicalize
from passerelle.permission_bridge.answers.subjects import LIMIT_BYTES
from passerelle.permission_bridge.views import compute_digest
from tests.integration.callers.test_policy_verbs import run
from tests.integration.devices.asking import BOB, PEOPLE, PERMISSION, bearer, list_pending
from tests.support.waiting import wait_until
from tests.support.worker_program import CommandWorker

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio

ADA: Final[dict[str, object]] = {
    "name": "ada",
    "kind": "person",
    "scopes": [*PEOPLE, "tasks:write"],
}
BUILDER: Final[dict[str, object]] = {
    "name": "builder",
    "kind": "agent",
    "scopes": ["approvals:ask"],
}
MAIL: Final = {"name": "mail", "effect": "ask", "about": ["delegations"]}
LONG: Final = "a very long line \u202e; " * 1_000


async def open_large(at: Instance) -> JsonObject:
    """An agent requests approval for content that exceeds the preview."""
    form: JsonObject = {
        "action_id": "act_large",
        "rev": 1,
        "digest": "sha256:ab",
        "kind": "permission",
        "title": "Write",
        "subject": {"type": "tool_call", "name": "write", "arguments": {"text": LONG}},
        "options": [
            {"option_id": "yes", "name": "Write", "kind": "allow_once"},
            {"option_id": "no", "name": "Do not", "kind": "reject_once"},
        ],
        "risk": "low",
    }
    text = f"ask-data {orjson.dumps({PERMISSION: form}).decode()}"
    assert (await at.send("ada-key", text)).status_code == 200
    return await find(at)


async def find(at: Instance) -> JsonObject:
    async def look() -> JsonObject | None:
        return next(iter(await list_pending(at, "ada")), None)

    view = await wait_until(look, 20, "the approval is pending")
    assert view is not None
    return view


async def read(at: Instance, view: JsonObject, who: str = "ada") -> Any:  # noqa: ANN401  JSON as a test reads it
    path = f"/v1/approvals/{view['actionId']}/content"
    answer = await at.http.get(path, headers=bearer(who))
    assert answer.status_code == 200, answer.text
    return answer.json()


def check(view: Any, whole: Any) -> None:  # noqa: ANN401  JSON as a test reads it
    """Checks that the content read is the one that the approval's digest covers."""
    packed = canonicalize(whole["content"])
    named = f"sha256:{hashlib.sha256(packed).hexdigest()}"
    subject = view["subject"]
    assert (whole["contentDigest"], whole["bytes"]) == (named, len(packed))
    assert (subject["contentDigest"], subject["bytes"]) == (named, len(packed))
    assert (whole["rev"], whole["digest"]) == (view["rev"], compute_digest(view))
    assert packed.startswith(subject["content"]["preview"].encode()[:1_000])


async def test_content_of_an_agents_approval_is_read_whole_and_escaped(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BOB])
    view = await open_large(at)
    whole = await read(at, view)
    check(view, whole)
    text = whole["content"]["arguments"]["text"]
    assert text == LONG.replace("\u202e", "\\u{202e}")
    path = f"/v1/approvals/{view['actionId']}/content"
    assert (await at.http.get(path, headers=bearer("bob"))).status_code == 404
    unknown = await at.http.get("/v1/approvals/act_nowhere/content", headers=bearer("ada"))
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    printed = await run(at, "show", str(view["actionId"]))
    # The title contains the beginning a second time.
    assert printed.count("a very long line") == 1_001
    # Reading the content does not resolve the approval.
    assert await find(at) == view


async def test_content_of_a_worker_is_read_by_the_worker_and_by_its_approver(rig: Rig) -> None:
    at = await rig.start(clients=[ADA, BUILDER])
    turn = {"agent": "echo", "text": "slow 8"}
    accepted = (await at.http.post("/v1/turns", json=turn, headers=bearer("ada"))).json()
    worker = CommandWorker(at.http, "builder-key", accepted["taskId"])
    large = await worker.ask(f"echo {LONG}", "a-1")
    whole = await read(at, large)
    check(large, whole)
    assert await read(at, large, "builder") == whole
    small = await worker.ask("make install", "a-2")
    shown = await read(at, small, "builder")
    assert shown["content"] == {"command": "make install"} == small["subject"]["content"]  # type: ignore[index,call-overload]
    assert shown["digest"] == compute_digest(small)


async def test_content_of_a_held_message_is_read_whole(rig: Rig) -> None:
    at = await rig.start(clients=[ADA], policy={"rules": [MAIL]})
    assert (await at.send("ada-key", LONG)).status_code == 200
    view = await find(at)
    whole = await read(at, view)
    check(view, whole)
    assert whole["content"]["parts"][0]["text"] == LONG.replace("\u202e", "\\u{202e}")
    assert rig.counted() == 0


async def test_content_over_the_response_limit_is_refused_as_too_large(rig: Rig) -> None:
    at = await rig.start(clients=[ADA], policy={"rules": [MAIL]})
    assert (await at.send("ada-key", "\u202e" * (LIMIT_BYTES // 8))).status_code == 200
    view = await find(at)
    path = f"/v1/approvals/{view['actionId']}/content"
    refused = await at.http.get(path, headers=bearer("ada"))
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
