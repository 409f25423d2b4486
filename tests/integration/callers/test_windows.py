"""A session is read in windows over HTTP: the last events first, then backwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from passerelle.core.wire.codec import wire_schema
from passerelle.gateway.http.v1 import OPERATIONS

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject
    from tests.integration.callers.rig import Instance, Rig

pytestmark = pytest.mark.anyio


async def read(one: Instance, session: str, query: str = "") -> dict[str, Any]:
    headers = {"Authorization": "Bearer ada-key"}
    answer = await one.http.get(f"/v1/sessions/{session}{query}", headers=headers)
    assert answer.status_code == 200, answer.text
    return cast("dict[str, Any]", answer.json()["history"])


@pytest.mark.requirement("SNAP-1")
async def test_a_session_is_read_back_to_its_beginning(rig: Rig) -> None:
    one = await rig.start(clients=[{"name": "ada", "scopes": ["a2a:call", "tasks:read"]}])
    task = (await one.send("ada-key", "hello")).json()["result"]["task"]["id"]
    shown = await one.http.get(f"/v1/tasks/{task}", headers={"Authorization": "Bearer ada-key"})
    session = str(shown.json()["sessionId"])
    whole = await read(one, session)
    assert whole["first"] == 1
    assert whole["last"] > 12
    window = await read(one, session, "?limit=5")
    items = window["items"]
    while "before" in window:
        first = window["first"]
        assert (window["last"] - first, window["before"]) == (4, first)
        window = await read(one, session, f"?limit=5&before={first}")
        assert window["last"] == first - 1
        items = window["items"] + items
    assert (window["first"], items) == (1, whole["items"])
    assert (await read(one, session, "?before=1"))["items"] == []


@pytest.mark.requirement("SNAP-1")
def test_query_parsing_covers_every_integer_and_list_of_an_operation() -> None:
    for operation in OPERATIONS:
        properties = cast(
            "dict[str, JsonObject]", wire_schema(operation.call.params).get("properties", {})
        )
        for name, schema in properties.items():
            forms = [schema, *cast("list[JsonObject]", schema.get("anyOf", []))]
            for kind in ("integer", "array"):
                takes = any(form.get("type") == kind for form in forms)
                assert (name in operation.list_params(kind)) == takes, (operation.path, name)
