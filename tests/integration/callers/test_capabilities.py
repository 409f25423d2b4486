"""The capability page: ten items, each with its state, its requirements, and what is missing or switched off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from passerelle.runtime.common.version import VERSION
from tests.support.ledger import collect, load

if TYPE_CHECKING:
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio

ADA: Final = {"name": "ada", "scopes": ["tasks:read"]}
WORKER: Final = {"name": "worker", "scopes": ["approvals:ask"]}
ITEMS: Final = [
    "identity",
    "events",
    "control_plane",
    "snapshots",
    "orchestration",
    "human_in_the_loop",
    "evidence",
    "boundaries",
    "routing_and_limits",
    "tasks",
]


async def read_parts(at: Instance) -> dict[str, dict[str, Any]]:
    """Returns the parts of all items, by ``item.part``."""
    items = await read_items(at)
    return {f"{item['name']}.{part['name']}": part for item in items for part in item["parts"]}


async def read_items(at: Instance) -> list[dict[str, Any]]:
    said = await at.http.get("/v1/capabilities", headers={"Authorization": "Bearer ada-key"})
    assert said.status_code == 200, said.text
    page = said.json()
    assert page["version"] == VERSION
    items: list[dict[str, Any]] = page["capabilities"]
    return items


@pytest.mark.requirement("ID-17")
async def test_each_item_of_the_scope_has_a_state_and_what_is_supported_is_tested(rig: Rig) -> None:
    at = await rig.start(clients=[ADA])
    items = await read_items(at)
    assert [item["name"] for item in items] == ITEMS
    missing = {row.id: row.missing for row in load()}
    tested = {mark.id for mark in collect()}
    states = set[str]()
    for part in (part for item in items for part in item["parts"]):
        states.add(part["state"])
        rows = part["requirements"]
        assert rows
        if part["state"] == "supported":
            assert part["reasons"] == []
            assert tested.issuperset(rows)
            assert not any(missing[row] for row in rows)
        else:
            assert all(part["reasons"])
    assert states == {"supported", "adapted", "unavailable"}
    for item in items:
        found = {part["state"] for part in item["parts"]}
        assert item["state"] == (found.pop() if len(found) == 1 else "adapted")


@pytest.mark.requirement("ID-17")
async def test_disabled_feature_is_unavailable_and_names_its_setting(rig: Rig) -> None:
    plain = await read_parts(await rig.start(clients=[ADA]))
    assert plain["tasks.large_output"]["state"] == "supported"
    assert plain["boundaries.hooks"]["state"] == "unavailable"
    assert "policy.hooks" in plain["boundaries.hooks"]["reasons"][0]
    assert "agents.price" in plain["routing_and_limits.cost_and_quota"]["reasons"][0]
    hook = {"name": "look", "url": "http://127.0.0.1:9/hook", "points": ["before_delegate"]}
    other = await rig.start(
        clients=[ADA],
        policy={"hooks": [hook], "mode": "no_ask"},
        agent={"price": {"per_call": "0.10", "currency": "EUR"}},
        retention={"memory": None},
    )
    parts = await read_parts(other)
    assert parts["boundaries.hooks"]["state"] == "supported"
    assert parts["routing_and_limits.cost_and_quota"]["state"] == "supported"
    assert parts["human_in_the_loop.approvals"]["state"] == "unavailable"
    assert "policy.mode" in parts["human_in_the_loop.approvals"]["reasons"][0]
    assert "retention.memory" in parts["tasks.archive"]["reasons"][0]


async def test_page_requires_a_scope_to_call_or_to_read(rig: Rig) -> None:
    at = await rig.start(clients=[WORKER])
    headers = {"Authorization": "Bearer worker-key"}
    assert (await at.http.get("/v1/capabilities", headers=headers)).status_code == 403
    assert (await at.http.get("/v1/capabilities")).status_code == 401
