"""The signed payload of a card: the example of the specification, and a table that agrees with the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import jwt
import jwt.utils
import pytest
from a2a.types.a2a_pb2 import AgentCard
from a2a.utils.signing import ProtectedHeader, create_agent_card_signer
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import ParseDict

from passerelle.a2a_mapping.card_payload import CARD, MessageKind, list_payloads, render_payload
from passerelle.a2a_mapping.cards import AgentAddress, PublicEdge, rewrite_card
from passerelle.core.errors import InvalidInput
from passerelle.core.wire.json import JsonObject

FREE = {"google.protobuf.Struct", "google.protobuf.Value"}
REQUIRED = 2
NEVER_SIGNED = {"signatures"}
CARD_MESSAGE = cast("Descriptor", AgentCard.DESCRIPTOR)


@pytest.mark.kit("CARD-SIGN-001", "CARD-SIGN-002")
def test_example_of_the_specification() -> None:
    card: JsonObject = {
        "name": "Example Agent",
        "description": "",
        "capabilities": {"streaming": False, "pushNotifications": False, "extensions": []},
        "skills": [],
    }
    assert render_payload(card) == (
        b'{"capabilities":{"pushNotifications":false,"streaming":false},'
        b'"description":"","name":"Example Agent","skills":[]}'
    )


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_implicit(field: FieldDescriptor) -> bool:
    behaviour = [
        value
        for option, value in field.GetOptions().ListFields()
        if option.full_name == "google.api.field_behavior"
    ]
    return not field.has_presence and not any(REQUIRED in values for values in behaviour)


def _list_messages(message: Descriptor) -> Iterator[tuple[str, Descriptor]]:
    for field in message.fields:
        below = field.message_type
        if below is not None and _is_map(field):
            below = below.fields_by_name["value"].message_type
        if below is not None and below.full_name not in FREE:
            yield field.json_name, below


def _find_differences(message: Descriptor, kind: MessageKind, path: str) -> Iterator[str]:
    implicit = frozenset(field.json_name for field in message.fields if _is_implicit(field))
    if implicit != kind.implicit:
        yield f"{path}: {sorted(implicit ^ kind.implicit)}"
    below = {name: one for name, one in _list_messages(message) if name not in NEVER_SIGNED}
    for name in below.keys() - kind.messages.keys():
        # A message without a rule of its own is only the same as one whose fields are all kept.
        yield from _find_differences(below[name], MessageKind(), f"{path}.{name}")
    for name in kind.messages.keys() - below.keys():
        yield f"{path}.{name}: is no message"
    for name in kind.messages.keys() & below.keys():
        yield from _find_differences(below[name], kind.messages[name], f"{path}.{name}")
    maps = frozenset(name for name in below if _is_map(message.fields_by_camelcase_name[name]))
    if maps != kind.maps:
        yield f"{path}: maps {sorted(maps ^ kind.maps)}"


def test_table_is_the_one_of_the_protocol() -> None:
    assert list(_find_differences(CARD_MESSAGE, CARD, "AgentCard")) == []


def test_table_that_misses_a_field_is_found() -> None:
    short = MessageKind(CARD.implicit - {"securitySchemes"}, CARD.messages, CARD.maps)
    found = list(_find_differences(CARD_MESSAGE, short, "AgentCard"))
    assert found == ["AgentCard: ['securitySchemes']"]


def test_signed_payload_leaves_out_optional_members_that_are_empty() -> None:
    card: JsonObject = {
        "documentationUrl": "",
        "securitySchemes": {"line": {"mtlsSecurityScheme": {"description": ""}}},
        "securityRequirements": [{"schemes": {"line": {"list": []}}}],
        "capabilities": {"extensions": [{"uri": "u", "required": False, "params": {"a": ""}}]},
        "skills": [{"id": "", "examples": []}],
        "supportedInterfaces": [{"url": "", "tenant": ""}],
        "iconUrl": None,
        "unknown": [],
        "signatures": [{"protected": "x"}],
    }
    assert render_payload(card) == (
        b'{"capabilities":{"extensions":[{"params":{"a":""},"uri":"u"}]},'
        b'"documentationUrl":"",'
        b'"securityRequirements":[{"schemes":{"line":{}}}],'
        b'"securitySchemes":{"line":{"mtlsSecurityScheme":{}}},'
        b'"skills":[{"id":""}],'
        b'"supportedInterfaces":[{"url":""}],'
        b'"unknown":[]}'
    )


def test_name_of_a_scheme_is_no_name_of_a_field() -> None:
    scheme: JsonObject = {"openIdConnectSecurityScheme": {"openIdConnectUrl": "u"}}
    payload = render_payload({"securitySchemes": {"capabilities": scheme, "list": scheme}})
    assert payload.count(b'"openIdConnectUrl":"u"') == 2


def _is_signed_by_sdk(card: JsonObject, payload: bytes) -> bool:
    """Whether these are the bytes that the SDK signs of a card."""
    header = ProtectedHeader(kid="k", alg="HS256", jku=None, typ="JOSE")
    signed = create_agent_card_signer("0" * 32, header)(ParseDict(card, AgentCard()))
    made = signed.signatures[0]
    token = f"{made.protected}.{jwt.utils.base64url_encode(payload).decode()}.{made.signature}"
    try:
        jwt.PyJWS().decode(token, "0" * 32, algorithms=["HS256"])
    except jwt.InvalidSignatureError:
        return False
    return True


def test_signed_payload_of_a_gateway_card_equals_that_of_the_sdk() -> None:
    peer: JsonObject = {
        "name": "Écho",
        "description": "d",
        "version": "1",
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "s", "name": "S", "description": "d", "tags": ["t"], "examples": []}],
    }
    bearer: JsonObject = {"httpAuthSecurityScheme": {"scheme": "bearer"}}
    edge = PublicEdge({"bearer": bearer}, ("a2a:call",), ({"uri": "urn:x", "required": False},))
    card = rewrite_card(peer, AgentAddress("echo", "http://p/card", "https://gw/agents/echo"), edge)
    assert _is_signed_by_sdk(card, render_payload(card))


def test_sdk_leaves_out_required_fields_that_are_empty_and_its_form_is_tried_too() -> None:
    card: JsonObject = {
        "name": "n",
        "description": "",
        "skills": [],
        "capabilities": {"streaming": False, "extensions": [{"uri": "u", "required": False}]},
    }
    assert not _is_signed_by_sdk(card, render_payload(card))
    assert any(_is_signed_by_sdk(card, payload) for payload in list_payloads(card))


def test_every_form_is_tried_once_and_none_without_a_canonical_form() -> None:
    assert list_payloads({"name": "n"}) == [b'{"name":"n"}']
    assert list_payloads({"name": "", "skills": [{"tags": []}]})[-1] == b"null"
    with pytest.raises(InvalidInput):
        render_payload({"unknown": 2**60})
