"""Extensions of a call: read from header and query, activated, and what a card requires."""

from __future__ import annotations

import pytest

from passerelle.a2a_mapping.extensions import PERMISSION, list_required
from passerelle.core.wire.json import Json, JsonObject
from passerelle.gateway.a2a.extensions import activate, read_extensions, write_active
from passerelle.gateway.a2a.http_request import Incoming


def _incoming(query: str = "", **headers: str) -> Incoming:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Incoming({"method": "GET", "path": "/", "headers": raw, "query_string": query.encode()})


def test_extensions_are_read_from_header_and_query_alike() -> None:
    assert read_extensions(_incoming(a2a_extensions="urn:a, urn:b,,")) == {"urn:a", "urn:b"}
    assert read_extensions(_incoming("A2A-Extensions=urn:c", a2a_extensions="urn:a")) == {
        "urn:a",
        "urn:c",
    }
    assert read_extensions(_incoming()) == frozenset()


def test_extensions_may_come_in_several_lines() -> None:
    lines = [(b"a2a-extensions", b"urn:a"), (b"a2a-extensions", b"urn:b, urn:c")]
    incoming = Incoming({"method": "GET", "path": "/", "headers": lines, "query_string": b""})
    assert read_extensions(incoming) == {"urn:a", "urn:b", "urn:c"}


def test_name_of_0_3_counts_only_for_its_callers() -> None:
    incoming = _incoming(x_a2a_extensions="urn:a", a2a_extensions="urn:b")
    assert read_extensions(incoming) == {"urn:b"}
    assert read_extensions(incoming, legacy=True) == {"urn:a", "urn:b"}


def test_unsupported_extensions_are_not_activated() -> None:
    active = activate(frozenset({PERMISSION, "urn:foreign"}))
    assert active == {PERMISSION}
    assert write_active(active) == {"A2A-Extensions": PERMISSION}
    assert write_active(active, legacy=True) == {
        "A2A-Extensions": PERMISSION,
        "X-A2A-Extensions": PERMISSION,
    }
    assert write_active(frozenset()) == {}


@pytest.mark.parametrize(
    ("offered", "required"),
    [
        ([{"uri": "urn:a", "required": True}, {"uri": "urn:b"}], {"urn:a"}),
        ([{"uri": "urn:a", "required": "true"}, 7], set[str]()),
        ("nonsense", set[str]()),
    ],
)
def test_card_requires_what_it_marks(offered: Json, required: set[str]) -> None:
    card: JsonObject = {"capabilities": {"extensions": offered}}
    assert list_required(card) == required
