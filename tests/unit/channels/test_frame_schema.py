"""The published schema agrees with the decoder."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from passerelle.channels.asyncapi import render_asyncapi, render_frame_schema
from passerelle.core.wire.json import JsonObject
from passerelle.protocol.closing import CloseCode
from passerelle.protocol.frames import ClientFrame, Failure, Refusal, ServerFrame
from passerelle.protocol.wire import (
    CLIENT_CODECS,
    SERVER_CODECS,
    decode_client,
    encode_client,
    encode_server,
)
from tests.unit.channels.test_frames import CLIENT_FRAMES, JSON, MEMBERS, SERVER_FRAMES

SCHEMA = render_frame_schema()
DOCUMENT = render_asyncapi("1.2.3")


def make_validator(side: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({**SCHEMA, "anyOf": [{"$ref": f"#/$defs/{side}"}]})


CLIENT = make_validator("client")
SERVER = make_validator("server")


@pytest.mark.parametrize("frame", CLIENT_FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_client_frame_fits_its_schema(frame: ClientFrame) -> None:
    CLIENT.validate(orjson.loads(encode_client(frame)))


@pytest.mark.parametrize("frame", SERVER_FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_server_frame_fits_its_schema(frame: ServerFrame) -> None:
    SERVER.validate(orjson.loads(encode_server(frame)))


@given(st.sampled_from(sorted(CLIENT_CODECS)), st.dictionaries(MEMBERS, JSON, max_size=8))
def test_frames_fit_the_schema_exactly_if_they_can_be_decoded(
    kind: str, members: JsonObject
) -> None:
    # Read leniently and never written: a null for what is absent, a word that is none.
    frame: JsonObject = {name: it for name, it in members.items() if it is not None}
    assume("caps" not in frame and "null" not in json.dumps(frame.get("subs")).removesuffix("null"))
    decoded = decode_client(orjson.dumps({**frame, "t": kind}))
    taken = not isinstance(decoded, Refusal | Failure)
    assert CLIENT.is_valid({**frame, "t": kind}) == taken


def test_every_reference_of_the_document_leads_somewhere() -> None:
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(DOCUMENT)):
        place: Any = DOCUMENT
        for step in reference.split("/"):
            place = place[step]


def test_every_frame_and_every_close_code_is_in_the_document() -> None:
    schemas: Any = DOCUMENT["components"]
    tags = [schema["properties"]["t"]["const"] for schema in schemas["schemas"].values()]
    assert sorted(tags) == sorted([*CLIENT_CODECS, *SERVER_CODECS])
    channel: Any = DOCUMENT["channels"]
    assert set(channel["channel"]["x-close-codes"]) == {str(code.value) for code in CloseCode}
    operations: Any = DOCUMENT["operations"]
    assert len(operations["send"]["messages"]) == len(CLIENT_CODECS)
    assert len(operations["receive"]["messages"]) == len(SERVER_CODECS)
