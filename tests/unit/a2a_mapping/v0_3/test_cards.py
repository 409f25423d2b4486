"""Cards of 0.3: read as the SDK reads them, and written so that 0.3 readers accept them."""

from __future__ import annotations

import pytest
from a2a.compat.v0_3 import types as v03
from a2a.compat.v0_3.conversions import to_core_agent_card
from google.protobuf.json_format import MessageToDict

from passerelle.a2a_mapping.card_payload import render_payload
from passerelle.a2a_mapping.cards import (
    AgentAddress,
    CardShape,
    PublicEdge,
    choose_shape,
    rewrite_card,
    shape_card,
)
from passerelle.a2a_mapping.members import object_at
from passerelle.a2a_mapping.v0_3.cards import is_legacy, lift_card, lower_card
from passerelle.core.wire.json import JsonObject

OLD: JsonObject = {
    "name": "Old",
    "description": "Speaks 0.3 at http://old.internal:7000.",
    "version": "7",
    "protocolVersion": "0.3.0",
    "url": "http://old.internal:7000/rpc",
    "preferredTransport": "JSONRPC",
    "additionalInterfaces": [
        {"url": "http://old.internal:7000/rpc", "transport": "JSONRPC"},
        {"url": "http://old.internal:7000/rest", "transport": "HTTP+JSON"},
    ],
    "capabilities": {"streaming": True, "pushNotifications": True, "stateTransitionHistory": True},
    "supportsAuthenticatedExtendedCard": True,
    "securitySchemes": {
        "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
        "login": {"type": "openIdConnect", "openIdConnectUrl": "http://old.internal:7000/oidc"},
        "line": {"type": "mutualTLS"},
        "odd": {"type": "someday"},
    },
    "security": [{"key": []}, {"login": ["read"]}],
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [
        {"id": "s", "name": "S", "description": "d", "tags": ["t"], "security": [{"key": []}]}
    ],
    "future": 1,
}
PLACE = AgentAddress(
    "old", "http://old.internal:7000/.well-known/agent-card.json", "https://gw/agents/old"
)
BEARER: JsonObject = {"httpAuthSecurityScheme": {"scheme": "bearer"}}
BOTH = PublicEdge({"bearer": BEARER}, ("a2a:call",), versions=("1.0", "0.3"), extended=True)


def _known(card: JsonObject) -> JsonObject:
    """The part that the models of 0.3 know: other kinds of schemes are errors there."""
    schemes = card["securitySchemes"]
    assert isinstance(schemes, dict)
    return {
        **{name: value for name, value in card.items() if name != "future"},
        "securitySchemes": {name: item for name, item in schemes.items() if name != "odd"},
    }


def test_card_of_the_older_version_is_read_as_the_sdk_reads_it() -> None:
    known = _known(OLD)
    expected = MessageToDict(to_core_agent_card(v03.AgentCard.model_validate(known)))
    lifted = lift_card(known)
    # The SDK lists the main address twice where the card does, and shortens the version of the further ones.
    first, _, further = expected.pop("supportedInterfaces")
    assert lifted.pop("supportedInterfaces") == [first, {**further, "protocolVersion": "0.3.0"}]
    # An empty list of scopes counts as none.
    assert render_payload(lifted) == render_payload(expected)


def test_unknown_members_of_an_older_card_are_kept() -> None:
    lifted = lift_card(OLD)
    assert lifted["future"] == 1
    assert object_at(lifted, "securitySchemes")["odd"] == {"type": "someday"}


def test_card_of_the_newer_version_only_loses_the_members_of_the_older() -> None:
    newer: JsonObject = {"name": "n", "supportedInterfaces": [{"url": "u"}], "skills": []}
    assert lift_card({**newer, "url": "u", "protocolVersion": "0.3.0", "security": []}) == newer
    assert not is_legacy(newer)


def test_older_card_without_a_transport_speaks_json_rpc() -> None:
    assert lift_card({"url": "http://a"})["supportedInterfaces"] == [
        {"url": "http://a", "protocolBinding": "JSONRPC", "protocolVersion": "0.3.0"}
    ]


def test_card_of_an_older_agent_is_rewritten() -> None:
    card = rewrite_card(OLD, PLACE, PublicEdge())
    assert "old.internal" not in str(card)
    assert card["skills"] == [{"id": "s", "name": "S", "description": "d", "tags": ["t"]}]


def test_readers_of_the_older_version_take_our_card() -> None:
    lowered = lower_card(rewrite_card(_known(OLD), PLACE, BOTH))
    assert lowered is not None
    card = v03.AgentCard.model_validate(lowered)
    assert (card.url, card.preferred_transport) == (PLACE.base_url, "JSONRPC")
    assert card.protocol_version == "0.3.0"
    assert card.supports_authenticated_extended_card is True
    assert [entry.transport for entry in card.additional_interfaces or ()] == [
        "JSONRPC",
        "HTTP+JSON",
    ]
    assert card.security == [{"bearer": ["a2a:call"]}]
    assert card.security_schemes is not None
    assert isinstance(card.security_schemes["bearer"].root, v03.HTTPAuthSecurityScheme)
    assert not {"supportedInterfaces", "securityRequirements"} & set(lowered)
    assert "extendedAgentCard" not in card.capabilities.model_dump()


def test_header_of_a_key_is_called_as_the_older_version_calls_it() -> None:
    key: JsonObject = {"apiKeySecurityScheme": {"location": "header", "name": "x-api-key"}}
    lowered = lower_card(rewrite_card({}, PLACE, PublicEdge({"k": key}, versions=("0.3",))))
    assert lowered is not None
    assert lowered["securitySchemes"] == {
        "k": {"type": "apiKey", "in": "header", "name": "x-api-key"}
    }


def test_merged_card_has_the_addresses_of_the_older_version_and_no_signature() -> None:
    card = rewrite_card(OLD, PLACE, BOTH)
    signed: JsonObject = {**card, "signatures": [{"protected": "p", "signature": "s"}]}
    merged = shape_card(signed, "merged")
    assert {name: merged[name] for name in card} == card
    assert set(merged) - set(card) == {
        "url",
        "preferredTransport",
        "protocolVersion",
        "additionalInterfaces",
    }
    assert shape_card(signed, "v1") is signed
    lowered = shape_card(signed, "v0.3")
    assert (lowered["url"], "signatures" in lowered) == (PLACE.base_url, False)


@pytest.mark.parametrize("shape", ["v1", "v0.3", "merged"])
def test_where_the_older_version_is_not_served_every_shape_is_the_newer(shape: CardShape) -> None:
    card = rewrite_card(OLD, PLACE, PublicEdge(versions=("1.0",)))
    assert shape_card(card, shape) == card


@pytest.mark.parametrize(
    ("version", "shape"),
    [
        (None, "merged"),
        ("", "merged"),
        (" ", "merged"),
        ("1.0", "v1"),
        ("1.0.1", "v1"),
        ("0.3", "v0.3"),
        ("0.3.0", "v0.3"),
        ("2.0", "v1"),
        ("0.30", "v1"),
    ],
)
def test_reader_gets_the_shape_of_the_version_that_it_names(
    version: str | None, shape: CardShape
) -> None:
    assert choose_shape(version, "merged") == shape
