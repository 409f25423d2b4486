"""One way to ask for a page, and the older names of its members."""

import pytest

from passerelle.core.commands import ListActions, ListDeliveries
from passerelle.core.errors import InvalidInput
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.rpc.paging import choose_position, choose_size
from passerelle.gateway.rpc.table import CALLS, call
from tests.support.scripted_service import ScriptedService
from tests.unit.gateway.test_rpc import caller

LISTS = ("list_actions", "list_deliveries", "get_audit")
LATER: dict[str, JsonObject] = {
    "get_job_results": {"jobId": "se_1"},
    "get_schedule_history": {"scheduleId": "se_1"},
}


@pytest.mark.parametrize(
    ("size", "limit", "expected"), [(None, None, 100), (7, None, 7), (None, 9, 9)]
)
def test_size_is_page_size_or_the_older_limit(
    size: int | None, limit: int | None, expected: int
) -> None:
    assert choose_size(size, limit, 100) == expected


@pytest.mark.parametrize(
    ("token", "after", "expected"), [(None, None, 0), ("", None, 0), ("12", None, 12), (None, 3, 3)]
)
def test_position_is_the_token_or_the_older_after(
    token: str | None, after: int | None, expected: int
) -> None:
    assert choose_position(token, after) == expected


@pytest.mark.parametrize("token", ["x", "-1", "1.5", "9" * 20, "²"])
def test_token_of_another_list_is_named(token: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        choose_position(token, None)
    assert caught.value.field == "pageToken"


@pytest.mark.anyio
@pytest.mark.parametrize("name", [*LISTS, *LATER])
async def test_each_list_takes_either_name_and_not_both(name: str) -> None:
    given = LATER.get(name, {})
    service = ScriptedService()
    for spelled in ("pageSize", "limit"):
        await call(service, caller(None), name, {**given, spelled: 5})
    assert service.asked[0] == service.asked[1]
    with pytest.raises(InvalidInput) as caught:
        await call(service, caller(None), name, {**given, "pageSize": 5, "limit": 5})
    assert caught.value.field == "limit"


@pytest.mark.anyio
@pytest.mark.parametrize("name", LATER)
async def test_later_pages_take_the_token_or_the_position(name: str) -> None:
    service = ScriptedService()
    await call(service, caller(None), name, {**LATER[name], "pageToken": "4"})
    await call(service, caller(None), name, {**LATER[name], "after": 4})
    assert service.asked[0] == service.asked[1]
    with pytest.raises(InvalidInput) as caught:
        await call(service, caller(None), name, {**LATER[name], "after": 4, "pageToken": "4"})
    assert caught.value.field == "after"


@pytest.mark.anyio
async def test_page_of_a_list_reaches_its_reader() -> None:
    service = ScriptedService()
    await call(service, caller(None), "list_actions", {"pageSize": 5, "pageToken": "t"})
    await call(service, caller(None), "list_deliveries", {"pageSize": 6, "pageToken": "t"})
    found = [query for _, query, _ in service.asked]
    assert found == [ListActions(5, page_token="t"), ListDeliveries(6, "t")]


def test_every_list_is_in_the_table() -> None:
    assert {*LISTS, *LATER} <= CALLS.keys()
