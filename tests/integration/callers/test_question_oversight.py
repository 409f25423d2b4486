"""Oversight of approvals: the overseer sees that they are pending, but neither their content nor a way to decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httpx
import pytest
from starlette.applications import Starlette

from passerelle.core.event_type import EventType
from passerelle.core.principal import AccessScope, Principal
from passerelle.gateway.http.v1 import make_v1_routes
from passerelle.runtime.common.clock import SystemIds
from tests.integration.callers.test_oversight import OUT, FixedAuthenticator, get, list_reads
from tests.integration.callers.test_overview import send
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.callers.rig import Answer, Instance, Rig

pytestmark = pytest.mark.anyio
PERSON: Final = ["a2a:call", "tasks:read", "approvals:read", "approvals:decide"]
CLIENTS: Final[list[dict[str, object]]] = [
    {"name": "ada", "scopes": PERSON, "kind": "person"},
    {"name": "bob", "scopes": PERSON, "kind": "person"},
    {"name": "eve", "scopes": ["approvals:oversee"], "kind": "person"},
    {"name": "all", "scopes": [*PERSON, "approvals:oversee", "tasks:write"], "kind": "person"},
    {"name": "far", "scopes": ["approvals:oversee"], "may_call": ["another"], "kind": "person"},
]
UNKNOWN: Final = f"act_{'0' * 28}"
WORDS: Final = "which of the secret boats"
FORBIDDEN: Final = frozenset(
    {"title", "description", "peerMessage", "subject", "options", "responseSchema", "digest"}
)


async def ask(one: Instance, who: str, text: str = WORDS) -> str:
    """Starts a task that opens an approval; returns its action id."""
    known = {str(view["actionId"]) for view in await list_own(one, who)}
    await send(one, who, f"ask {text}")

    async def find() -> str | None:
        found = {str(view["actionId"]) for view in await list_own(one, who)} - known
        return found.pop() if found else None

    action = await wait_until(find, 20, "the approval is pending")
    assert action is not None
    return action


async def list_own(one: Instance, who: str) -> list[Answer]:
    return list((await get(one, who, "/v1/approvals")).json()["pending"])


async def list_all(one: Instance, who: str, query: str = "", limit: int = 2) -> list[Answer]:
    """Returns all pages of the tenant's pending approvals."""
    found: list[Answer] = []
    token = ""
    while True:
        page = f"&pageToken={token}" if token else ""
        path = f"/v1/approvals?owners=all&limit={limit}{page}{query}"
        answer = await get(one, who, path)
        assert answer.status_code == httpx.codes.OK, answer.text
        assert WORDS not in answer.text
        found += answer.json()["pending"]
        token = answer.json()["nextPageToken"]
        if not token:
            return found


async def test_pending_approvals_of_the_tenant_are_listed_without_their_content(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    asked = [await ask(one, who) for who in ("ada", "bob", "ada", "bob", "ada")]
    views: list[Answer] = []
    for limit in (1, 2, 5, 50):
        views = await list_all(one, "eve", limit=limit)
        assert [view["actionId"] for view in views] == asked[::-1], limit
    assert [view["owner"] for view in views] == ["ada", "bob", "ada", "bob", "ada"]
    for view in views:
        assert view.keys().isdisjoint(FORBIDDEN)
        assert (view["audience"], view["state"]) == ([view["owner"]], "pending")
        assert view["risk"]
        assert view["createdAt"] < view["expiresAt"]
    assert await list_all(one, "eve", f"&taskId={views[0]['taskId']}") == views[:1]
    assert await list_all(one, "eve", "&kind=permission") == await list_all(one, "far") == []
    reads = [read["payload"]["of"] for read in await list_reads(one, "eve")]
    assert reads == ["questions of tenant:default"]
    assert len(await list_own(one, "all")) == 0, "what is one's own is what it was"
    refused = await get(one, "ada", "/v1/approvals?owners=all")
    assert refused.status_code == httpx.codes.FORBIDDEN
    assert "approvals:oversee" in refused.text
    closed = await get(one, "eve", "/v1/approvals?owners=all&state=closed")
    assert (closed.status_code, closed.json()["field"]) == (httpx.codes.BAD_REQUEST, "state")


async def test_page_token_names_no_approval_of_another_tenant(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    for who in ("ada", "bob", "ada"):
        await ask(one, who)
    # This instance has served no task of theirs, so it does not know their tenant.
    two = await rig.start(clients=CLIENTS)
    routes = make_v1_routes(two.gateway.parts.service, FixedAuthenticator(OUT), SystemIds())
    transport = httpx.ASGITransport(Starlette(routes=routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        answered = (await http.get("/v1/approvals?owners=all&limit=1")).json()
    assert answered == {"pending": [], "nextPageToken": ""}


async def test_one_approval_is_shown_in_short_and_its_read_recorded_once(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    action = await ask(one, "ada")
    whole = (await get(one, "ada", f"/v1/approvals/{action}")).json()
    assert WORDS in str(whole)
    answers = [await get(one, "eve", f"/v1/approvals/{action}") for _ in range(3)]
    seen = answers[-1]
    for answer in answers:
        assert answer.text == seen.text
        assert seen.status_code == httpx.codes.OK, seen.text
        assert WORDS not in seen.text
        assert seen.json().keys().isdisjoint(FORBIDDEN)
    for name in ("actionId", "rev", "risk", "kind", "taskId", "expiresAt"):
        assert seen.json()[name] == whole[name], name
    [read] = await list_reads(one, "eve")
    assert (read["payload"]["of"], read["payload"]["owner"]) == (action, Principal("ada").key)


@pytest.mark.parametrize("path", ["", "/content", "/explain"])
async def test_hidden_approval_equals_an_unknown_one_in_each_byte(rig: Rig, path: str) -> None:
    one = await rig.start(clients=CLIENTS)
    action = await ask(one, "ada")
    for who in ("bob", "far") if path == "" else ("bob", "all"):
        refused, unknown = [
            await get(one, who, f"/v1/approvals/{name}{path}") for name in (action, UNKNOWN)
        ]
        assert refused.status_code == unknown.status_code, who
        assert refused.text.replace(action, UNKNOWN) == unknown.text, who
        assert not refused.is_success
        assert await list_reads(one, who) == []
    routes = make_v1_routes(one.gateway.parts.service, FixedAuthenticator(OUT), SystemIds())
    transport = httpx.ASGITransport(Starlette(routes=routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        answered, missed = [
            (await http.get(f"/v1/approvals/{name}{path}")).text for name in (action, UNKNOWN)
        ]
        assert answered.replace(action, UNKNOWN) == missed
        assert (await http.get("/v1/approvals?owners=all")).json()["pending"] == []


async def test_overseer_decides_nothing(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    action = await ask(one, "ada")
    view = (await get(one, "ada", f"/v1/approvals/{action}")).json()
    body = {
        "rev": view["rev"],
        "digest": view["digest"],
        "decisionId": "dec_1",
        "optionId": "reply",
        "content": {"text": "mine"},
    }
    for who, status in (("eve", httpx.codes.FORBIDDEN), ("all", httpx.codes.NOT_FOUND)):
        headers = {"Authorization": f"Bearer {who}-key", "Idempotency-Key": "one"}
        path = f"/v1/approvals/{action}/decision"
        answer = await one.http.post(path, json=body, headers=headers)
        assert answer.status_code == status, answer.text
        seen = await one.http.post(f"/v1/approvals/{action}/seen", json={}, headers=headers)
        assert not seen.is_success
    assert (await get(one, "ada", f"/v1/approvals/{action}")).json()["state"] == "pending"


async def test_an_agent_cannot_oversee(rig: Rig) -> None:
    one = await rig.start(clients=CLIENTS)
    action = await ask(one, "ada")
    robot = Principal("robot", kind="agent", scopes=frozenset(AccessScope))
    routes = make_v1_routes(one.gateway.parts.service, FixedAuthenticator(robot), SystemIds())
    transport = httpx.ASGITransport(Starlette(routes=routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        listed = await http.get("/v1/approvals?owners=all")
        shown = await http.get(f"/v1/approvals/{action}")
    assert listed.status_code == httpx.codes.FORBIDDEN
    assert shown.status_code == httpx.codes.NOT_FOUND
    events = await one.read_home("robot")
    assert all(event["type"] != EventType.HISTORY_WINDOW_LOADED for event in events)
