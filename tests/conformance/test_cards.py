"""The public card (A2A 1.0 sections 4.4, 8.1 to 8.3 and 8.6)."""

from __future__ import annotations

import httpx
import pytest
from a2a.types import a2a_pb2

from passerelle.a2a_mapping.socket_frames import BINDING
from tests.conformance import errors
from tests.conformance.callers import JSONRPC, WEBSOCKET, Json, make_params
from tests.conformance.conftest import BINDINGS
from tests.conformance.shapes import check_shape, list_members
from tests.conformance.site import Site, find_origin, write

pytestmark = pytest.mark.anyio


@pytest.fixture
async def card(site: Site) -> Json:
    said: Json = (await site.read_card()).json()
    return said


@pytest.mark.kit("CARD-DISC-001")
async def test_card_is_at_its_well_known_path_without_a_credential(site: Site) -> None:
    response = await site.read_card()
    assert response.status_code == httpx.codes.OK
    assert response.headers["content-type"] == "application/json"


@pytest.mark.kit("CARD-STRUCT-001")
async def test_card_has_all_required_members_and_no_unknown_ones(card: Json) -> None:
    check_shape(card, a2a_pb2.AgentCard)
    assert {"name", "description", "version", "capabilities", "skills"} <= card.keys()
    assert {"defaultInputModes", "defaultOutputModes", "supportedInterfaces"} <= card.keys()


@pytest.mark.kit("CARD-PROTO-001", "CARD-PROTO-002", "BIND-FIELD-001")
async def test_card_names_every_binding_and_where_it_is(site: Site, card: Json) -> None:
    interfaces = card["supportedInterfaces"]
    current = {one["protocolBinding"] for one in interfaces if one["protocolVersion"] == "1.0"}
    assert current == {*BINDINGS, BINDING}
    assert all(one.keys() >= {"url", "protocolBinding", "protocolVersion"} for one in interfaces)


@pytest.mark.kit("BIND-FIELD-001")
async def test_every_binding_answers_at_its_url_on_the_card(site: Site, card: Json) -> None:
    for binding in (*BINDINGS, WEBSOCKET):
        async with site.open_caller(binding) as caller:
            answer = await caller.call("SendMessage", make_params(write("tck-complete-task")))
            assert "task" in answer.said


@pytest.mark.kit("CARD-PROTO-002")
async def test_card_has_no_address_of_the_agent(site: Site, card: Json) -> None:
    origins = (find_origin(site.agent.url), site.agent.grpc)
    strings = [value for _, value in list_members(card) if isinstance(value, str)]
    assert strings
    assert not [text for text in strings if any(origin in text for origin in origins)]


@pytest.mark.kit("CARD-CACHE-001", "CARD-CACHE-002", "CARD-CACHE-003")
async def test_card_can_be_cached_and_revalidated(site: Site) -> None:
    first = await site.read_card()
    assert "max-age" in first.headers["cache-control"]
    assert first.headers["last-modified"].endswith("GMT")
    again = await site.read_card(If_None_Match=first.headers["etag"])
    assert (again.status_code, again.content) == (httpx.codes.NOT_MODIFIED, b"")
    later = await site.read_card(If_Modified_Since=first.headers["last-modified"])
    assert later.status_code == httpx.codes.NOT_MODIFIED


@pytest.mark.kit("CORE-CAP-002")
async def test_card_declares_streaming_for_every_agent(site: Site, card: Json) -> None:
    assert card["capabilities"]["streaming"] is True
    async with site.open_caller(JSONRPC) as caller:
        assert await caller.collect(write("tck-stream-001"))


@pytest.mark.kit("CARD-EXT-001", "CARD-EXT-002", "CORE-CAP-003")
async def test_extended_card_exists_exactly_if_the_card_declares_it(
    site: Site, card: Json, binding: str
) -> None:
    async with site.open_caller(binding) as caller:
        answer = await caller.call("GetExtendedAgentCard", {})
    if card["capabilities"].get("extendedAgentCard"):
        check_shape(answer.said, a2a_pb2.AgentCard)
        assert site.agent.url not in str(answer.said)
    else:
        errors.UNSUPPORTED.check(answer.refused, binding)
    async with site.open_caller(binding, None) as anonymous:
        refused = (await anonymous.call("GetExtendedAgentCard", {})).refused
        errors.Error(-32603, 401, "UNAUTHENTICATED").check(refused, binding)
