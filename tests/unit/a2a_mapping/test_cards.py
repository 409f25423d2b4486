"""Cards: what is ours, what passes, and that nothing leads to the peer."""

from __future__ import annotations

import orjson
import pytest
from a2a.types.a2a_pb2 import AgentCard
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.cards import (
    encode_card,
    list_interfaces,
    list_origins,
    rewrite_card,
)
from passerelle.a2a_mapping.extensions import PERMISSION
from passerelle.a2a_mapping.origins import read_origin, replace_origins
from passerelle.core.json import Json, JsonObject
from tests.unit.a2a_mapping.samples import list_texts

CARD_URL = "http://peer.internal:9001/.well-known/agent-card.json"
BASE = "https://gateway.example/agents/echo"
CARD: JsonObject = {
    "name": "Echo",
    "description": "Ask http://peer.internal:9001/help or peer.internal:9001.",
    "version": "1.2",
    "provider": {"organization": "Peer Inc", "url": "http://peer.internal:9001/about"},
    "documentationUrl": "http://peer.internal:9001/docs",
    "iconUrl": "http://peer.internal:9001/icon.png",
    "supportedInterfaces": [
        {
            "url": "http://peer.internal:9001/grpc",
            "protocolBinding": "GRPC",
            "protocolVersion": "1.0",
        },
        {
            "url": "http://peer.internal:9001/rpc",
            "protocolBinding": "JSONRPC",
            "protocolVersion": "1.0",
        },
        {
            "url": "http://backup.internal/rpc",
            "protocolBinding": "JSONRPC",
            "protocolVersion": "1.0",
        },
    ],
    "capabilities": {"streaming": False, "pushNotifications": True, "extendedAgentCard": True},
    "securitySchemes": {"key": {"apiKeySecurityScheme": {"name": "k", "location": "header"}}},
    "securityRequirements": [{"schemes": {"key": {"list": []}}}],
    "signatures": [{"protected": "x", "signature": "y"}],
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [
        {
            "id": "echo",
            "name": "Echo",
            "description": "see HTTP://Peer.Internal:9001/skills",
            "tags": [],
            "securityRequirements": [{"schemes": {"key": {"list": []}}}],
        }
    ],
    "someday": {"home": "http://backup.internal/x", "keep": [1, {"a": None}]},
    "url": "http://peer.internal:9001",
    "preferredTransport": "JSONRPC",
}


def _without_pointers(card: JsonObject) -> JsonObject:
    pointers = ("documentationUrl", "iconUrl", "provider")
    return {name: value for name, value in card.items() if name not in pointers}


def test_no_text_of_the_card_leads_to_the_peer() -> None:
    card = rewrite_card(CARD, CARD_URL, BASE, "bearer").card
    assert not [text for text in list_texts(_without_pointers(card)) if "internal" in text.lower()]


def test_documentation_icon_and_provider_stay_with_the_peer() -> None:
    card = rewrite_card(CARD, CARD_URL, BASE, "open").card
    for name in ("documentationUrl", "iconUrl", "provider"):
        assert card[name] == CARD[name]


def test_the_interfaces_are_ours_and_nothing_of_an_older_card_is_left() -> None:
    card = rewrite_card(CARD, CARD_URL, BASE, "open").card
    assert card["supportedInterfaces"] == [
        {"url": BASE, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        {"url": BASE, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
    ]
    assert not {"url", "preferredTransport", "signatures"} & set(card)


def test_the_capabilities_are_the_gateways() -> None:
    extension: JsonObject = {"uri": PERMISSION, "required": False}
    card = rewrite_card(CARD, CARD_URL, BASE, "open", [extension]).card
    assert card["capabilities"] == {
        "streaming": True,
        "pushNotifications": False,
        "extendedAgentCard": False,
        "extensions": [extension],
    }


def test_the_card_asks_for_what_our_edge_asks_for() -> None:
    opened = rewrite_card(CARD, CARD_URL, BASE, "open").card
    assert not {"securitySchemes", "securityRequirements"} & set(opened)
    closed = rewrite_card(CARD, CARD_URL, BASE, "bearer").card
    assert closed["securitySchemes"] == {"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}
    assert closed["securityRequirements"] == [{"schemes": {"bearer": {"list": []}}}]


def test_what_nobody_knows_passes() -> None:
    card = rewrite_card(CARD, CARD_URL, BASE, "open").card
    assert card["someday"] == {"home": BASE, "keep": [1, {"a": None}]}


def test_the_sdk_reads_our_card() -> None:
    served = rewrite_card(_without("someday"), CARD_URL, BASE, "bearer").card
    card = ParseDict(served, AgentCard(), ignore_unknown_fields=False)
    assert [item.protocol_binding for item in card.supported_interfaces] == ["JSONRPC", "HTTP+JSON"]
    assert "bearer" in card.security_requirements[0].schemes


def _without(name: str) -> JsonObject:
    return {key: value for key, value in CARD.items() if key != name}


def test_the_version_and_the_etag_follow_the_content() -> None:
    one = rewrite_card(CARD, CARD_URL, BASE, "open")
    same = rewrite_card(CARD, CARD_URL, BASE, "open")
    other = rewrite_card({**CARD, "name": "Other"}, CARD_URL, BASE, "open")
    assert (one.etag, one.body) == (same.etag, same.body)
    assert one.etag != other.etag
    assert str(one.card["version"]).startswith("1.2+")
    assert one.card["version"] != other.card["version"]
    assert one.etag.startswith('"')
    assert orjson.loads(one.body) == one.card
    assert encode_card(one.card).etag == one.etag


def test_a_card_without_anything_can_be_served() -> None:
    card = rewrite_card({}, CARD_URL, BASE, "open").card
    assert card["skills"] == []
    assert card["supportedInterfaces"] == list_interfaces(BASE)


def test_a_default_port_may_be_written_or_not() -> None:
    assert read_origin("https://A.example") == read_origin("https://a.example:443/x")
    assert read_origin("http://a.example:8080") != read_origin("http://a.example")


@pytest.mark.parametrize("url", ["", "x", "http://", "mailto:a@b", "http://a:b", "file:///etc"])
def test_what_is_no_url_of_a_host_has_no_origin(url: str) -> None:
    assert read_origin(url) is None


def test_an_address_in_brackets_has_an_origin() -> None:
    assert read_origin("http://[::1]:80/x") == "http://[::1]:80"


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ("http://a.example/x?y=1 and more", "B and more"),
        ("(http://a.example:80)", "(B)"),
        ("wss://a.example/ws", "B"),
        ("http://user:pw@a.example/x", "B"),
        ("at a.example:80.", "at B."),
        ("http://a.example.org/x", "http://a.example.org/x"),
        ("http://a.example:8080/x", "http://a.example:8080/x"),
        ("the a.example domain", "the a.example domain"),
        ("nota.example:80", "nota.example:80"),
    ],
)
def test_only_addresses_of_the_origin_are_replaced(text: str, replaced: str) -> None:
    assert replace_origins(text, ["http://a.example:80"], "B") == replaced


def test_names_of_members_are_replaced_too() -> None:
    value: JsonObject = {"http://a.example/ext": [{"x": "http://a.example"}]}
    assert replace_origins(value, ["http://a.example:80"], "B") == {"B": [{"x": "B"}]}
    assert replace_origins(value, [], "B") == value


@given(
    st.recursive(
        st.sampled_from(["http://peer.internal:9001/a", "x http://backup.internal y", "z"])
        | st.none(),
        lambda below: (
            st.lists(below, max_size=3)
            | st.dictionaries(
                st.sampled_from(["a", "http://peer.internal:9001"]), below, max_size=2
            )
        ),
        max_leaves=8,
    )
)
def test_wherever_a_peer_writes_its_address_it_is_gone(value: Json) -> None:
    card = rewrite_card({**CARD, "future": value}, CARD_URL, BASE, "open").card
    assert not [text for text in list_texts(_without_pointers(card)) if "internal" in text.lower()]


def test_the_origins_of_a_peer_are_all_that_its_card_names() -> None:
    assert list_origins(CARD, CARD_URL) == {
        "http://peer.internal:9001",
        "http://backup.internal:80",
    }
