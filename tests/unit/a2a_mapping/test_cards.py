"""Cards: what is rewritten, what is kept, and that nothing reveals the address of the agent."""

from __future__ import annotations

import pytest
from a2a.types.a2a_pb2 import AgentCard
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.cards import (
    AgentAddress,
    PublicEdge,
    list_interfaces,
    list_origins,
    rewrite_card,
)
from passerelle.a2a_mapping.extensions import KAGENT_HITL, PERMISSION
from passerelle.a2a_mapping.origins import read_origin, replace_origins
from passerelle.core.wire.json import Json, JsonObject
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
            "url": "dial.internal:9002",
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
    "someday": {
        "home": "http://backup.internal/x",
        "dial": "dial.internal:9002",
        "keep": [1, {"a": None}],
    },
    "url": "http://peer.internal:9001",
    "preferredTransport": "JSONRPC",
}


def _without_pointers(card: JsonObject) -> JsonObject:
    pointers = ("documentationUrl", "iconUrl", "provider")
    return {name: value for name, value in card.items() if name not in pointers}


EDGE = PublicEdge(
    schemes={"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}, scopes=("a2a:call",)
)
OPEN = PublicEdge()
PLACE = AgentAddress("echo", CARD_URL, BASE)


def _without(*names: str) -> JsonObject:
    return {key: value for key, value in CARD.items() if key not in names}


def test_no_text_of_the_card_leads_to_the_peer() -> None:
    card = rewrite_card(CARD, PLACE, EDGE)
    assert not [text for text in list_texts(_without_pointers(card)) if "internal" in text.lower()]


def test_documentation_icon_and_provider_stay_with_the_peer() -> None:
    card = rewrite_card(CARD, PLACE, OPEN)
    for name in ("documentationUrl", "iconUrl", "provider"):
        assert card[name] == CARD[name]


def test_where_links_are_dropped_nothing_at_all_leads_to_the_peer() -> None:
    card = rewrite_card(CARD, PLACE, PublicEdge(links=False))
    assert not {"documentationUrl", "iconUrl", "provider"} & set(card)
    assert not [text for text in list_texts(card) if "internal" in text.lower()]


def test_card_lists_only_interfaces_of_the_gateway_and_no_member_of_an_older_card() -> None:
    card = rewrite_card(CARD, PLACE, PublicEdge(versions=("1.0",)))
    assert card["supportedInterfaces"] == [
        {"url": BASE, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        {"url": BASE, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
    ]
    assert not {"url", "preferredTransport", "signatures"} & set(card)


def test_interfaces_of_the_newer_version_are_listed_first() -> None:
    edge = PublicEdge(grpc="gateway.example:8443", grpc_default="echo", versions=("0.3", "1.0"))
    listed = [
        (entry["protocolBinding"], entry["protocolVersion"], entry["url"], entry.get("tenant"))
        for entry in list_interfaces(PLACE, edge)
        if isinstance(entry, dict)
    ]
    assert listed == [
        ("JSONRPC", "1.0", BASE, None),
        ("HTTP+JSON", "1.0", BASE, None),
        ("GRPC", "1.0", "gateway.example:8443", "echo"),
        ("JSONRPC", "0.3", BASE, None),
        ("HTTP+JSON", "0.3", BASE, None),
        ("GRPC", "0.3", "gateway.example:8443", None),
    ]


def test_older_grpc_reaches_the_default_agent_alone() -> None:
    edge = PublicEdge(grpc="gateway.example:8443", grpc_default="other", versions=("1.0", "0.3"))
    grpc = [
        entry["protocolVersion"]
        for entry in list_interfaces(PLACE, edge)
        if isinstance(entry, dict) and entry["protocolBinding"] == "GRPC"
    ]
    assert grpc == ["1.0"]


def test_the_capabilities_are_the_gateways() -> None:
    extension: JsonObject = {"uri": PERMISSION, "required": False}
    card = rewrite_card(CARD, PLACE, PublicEdge(extensions=(extension,)))
    assert card["capabilities"] == {
        "streaming": True,
        "pushNotifications": False,
        "extendedAgentCard": False,
        "extensions": [extension],
    }
    able = rewrite_card(CARD, PLACE, PublicEdge(push=True, extended=True))["capabilities"]
    assert isinstance(able, dict)
    assert (able["pushNotifications"], able["extendedAgentCard"]) == (True, True)


def test_extensions_of_the_agent_are_kept_and_the_gateways_own_are_listed_once() -> None:
    theirs: JsonObject = {
        "uri": "https://vendor.example/ext/trace",
        "required": True,
        "description": "see http://peer.internal:9001/ext",
        "params": {"at": "http://backup.internal/x"},
    }
    named: JsonObject = {"uri": "http://peer.internal:9001/ext/own"}
    chained: JsonObject = {"uri": PERMISSION}
    nameless: JsonObject = {"description": "x"}
    capabilities: JsonObject = {"extensions": [chained, theirs, nameless, named]}
    card: JsonObject = {**CARD, "capabilities": capabilities}

    def list_passed(edge: PublicEdge) -> Json:
        made = rewrite_card(card, PLACE, edge)["capabilities"]
        assert isinstance(made, dict)
        return made["extensions"]

    passed: JsonObject = {**theirs, "description": f"see {BASE}", "params": {"at": BASE}}
    assert list_passed(OPEN) == [passed, named]
    assert list_passed(PublicEdge(links=False)) == [passed]


def test_no_caller_has_to_know_an_extension_that_is_activated_for_it() -> None:
    theirs: JsonObject = {"uri": KAGENT_HITL, "required": True, "description": "people decide"}
    card: JsonObject = {**CARD, "capabilities": {"extensions": [theirs]}}
    made = rewrite_card(card, PLACE, OPEN)["capabilities"]
    assert isinstance(made, dict)
    assert made["extensions"] == [{**theirs, "required": False}]


def test_the_card_asks_for_what_our_edge_asks_for() -> None:
    opened = rewrite_card(CARD, PLACE, OPEN)
    assert not {"securitySchemes", "securityRequirements"} & set(opened)
    closed = rewrite_card(CARD, PLACE, EDGE)
    assert closed["securitySchemes"] == EDGE.schemes
    assert closed["securityRequirements"] == [{"schemes": {"bearer": {"list": ["a2a:call"]}}}]
    assert closed["skills"] == [
        {"id": "echo", "name": "Echo", "description": f"see {BASE}", "tags": []}
    ]


def test_any_one_of_several_schemes_is_enough() -> None:
    both = PublicEdge({"a": {"mtlsSecurityScheme": {}}, "b": {"mtlsSecurityScheme": {}}}, ("x",))
    assert rewrite_card(CARD, PLACE, both)["securityRequirements"] == [
        {"schemes": {"a": {"list": ["x"]}}},
        {"schemes": {"b": {"list": ["x"]}}},
    ]


def test_unknown_members_of_a_card_are_kept() -> None:
    card = rewrite_card(CARD, PLACE, OPEN)
    assert card["someday"] == {"home": BASE, "dial": BASE, "keep": [1, {"a": None}]}


def test_the_sdk_reads_our_card() -> None:
    served = rewrite_card(_without("someday"), PLACE, EDGE)
    card = ParseDict(served, AgentCard(), ignore_unknown_fields=False)
    assert [item.protocol_binding for item in card.supported_interfaces[:2]] == [
        "JSONRPC",
        "HTTP+JSON",
    ]
    assert "bearer" in card.security_requirements[0].schemes


def test_the_version_follows_the_content() -> None:
    one = rewrite_card(CARD, PLACE, OPEN)
    assert one == rewrite_card(CARD, PLACE, OPEN)
    other = rewrite_card({**CARD, "name": "Other"}, PLACE, OPEN)
    assert str(one["version"]).startswith("1.2+")
    assert one["version"] != other["version"]
    again = rewrite_card({**CARD, "version": "1.2+build.5"}, PLACE, OPEN)
    assert str(again["version"]).startswith("1.2+build.5.")


def test_a_card_without_anything_can_be_served() -> None:
    card = rewrite_card({}, PLACE, OPEN)
    assert card["skills"] == []
    assert card["supportedInterfaces"] == list_interfaces(PLACE, OPEN)


def test_a_default_port_may_be_written_or_not() -> None:
    assert read_origin("https://A.example") == read_origin("https://a.example:443/x")
    assert read_origin("http://a.example:8080") != read_origin("http://a.example")


@pytest.mark.parametrize("url", ["", "x", "http://", "mailto:a@b", "http://a:b", "file:///etc"])
def test_text_that_is_no_host_url_has_no_origin(url: str) -> None:
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
        st.sampled_from(
            ["http://peer.internal:9001/a", "x http://backup.internal y", "dial.internal:9002", "z"]
        )
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
    card = rewrite_card({**CARD, "future": value}, PLACE, OPEN)
    assert not [text for text in list_texts(_without_pointers(card)) if "internal" in text.lower()]


def test_the_origins_of_a_peer_are_all_that_its_card_names() -> None:
    assert list_origins(CARD, CARD_URL) == {
        "http://peer.internal:9001",
        "http://backup.internal:80",
        "grpc://dial.internal:9002",
    }
