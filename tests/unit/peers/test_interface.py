"""The interfaces that a card offers, and the order in which they are tried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from passerelle.core.wire.json import JsonObject
from passerelle.peers.interface import (
    PREFERENCE,
    AllowedTargets,
    Choice,
    Security,
    order,
    read_offer,
)
from passerelle.peers.origin import host_of

HERE = AllowedTargets(
    frozenset({"https://here.example", "http://dial.example:9001"}), "here.example"
)


def offer(binding: str, version: str = "1.0", url: str = "https://here.example/a") -> JsonObject:
    return {"url": url, "protocolBinding": binding, "protocolVersion": version}


def kinds(card: JsonObject, preference: tuple[Choice, ...] = PREFERENCE) -> list[str]:
    return [one.choice for one in order(read_offer(card, HERE).usable, preference)]


def test_json_rpc_is_preferred_and_0_3_is_last_whatever_the_card_lists() -> None:
    card: JsonObject = {
        "supportedInterfaces": [
            offer("HTTP+JSON", "0.3"),
            offer("JSONRPC", "0.3.0"),
            offer("GRPC", url="https://here.example"),
            offer("HTTP+JSON"),
            offer("JSONRPC", "1.0.1"),
            offer("GRPC", "0.3.0", url="https://here.example"),
        ]
    }
    assert kinds(card) == list(PREFERENCE)


def test_preference_of_the_operator_orders_and_leaves_out() -> None:
    card: JsonObject = {"supportedInterfaces": [offer("JSONRPC"), offer("HTTP+JSON")]}
    assert kinds(card, ("HTTP+JSON/1.0", "JSONRPC/1.0")) == ["HTTP+JSON/1.0", "JSONRPC/1.0"]
    assert kinds(card, ("HTTP+JSON/1.0",)) == ["HTTP+JSON/1.0"]


def test_two_of_a_kind_keep_the_order_of_the_card() -> None:
    urls = ["https://here.example/b", "https://here.example/a"]
    card: JsonObject = {"supportedInterfaces": [offer("JSONRPC", url=url) for url in urls]}
    assert [one.url for one in read_offer(card, HERE).usable] == urls


def test_card_of_0_3_has_a_main_address_and_further_ones() -> None:
    card: JsonObject = {
        "protocolVersion": "0.3.0",
        "url": "https://here.example/rpc",
        "preferredTransport": "HTTP+JSON",
        "additionalInterfaces": [
            {"url": "https://here.example/rpc", "transport": "JSONRPC"},
            {"url": "https://here.example/x", "transport": "CARRIER-PIGEON"},
        ],
    }
    assert kinds(card) == ["JSONRPC/0.3", "HTTP+JSON/0.3"]
    assert kinds({"protocolVersion": "0.3.0", "url": "https://here.example/rpc"}) == ["JSONRPC/0.3"]


def test_card_that_names_no_version_is_read_by_its_form() -> None:
    here: JsonObject = {"url": "https://here.example/rpc"}
    further: JsonObject = {"url": "https://here.example/rest", "transport": "HTTP+JSON"}
    assert kinds(here) == ["JSONRPC/0.3"]
    assert kinds({**here, "additionalInterfaces": [further]}) == ["JSONRPC/0.3", "HTTP+JSON/0.3"]
    listed: JsonObject = {**here, "protocolBinding": "JSONRPC"}
    assert kinds({"supportedInterfaces": [listed]}) == ["JSONRPC/1.0"]
    assert kinds({"supportedInterfaces": [{**listed, "protocolVersion": ""}]}) == ["JSONRPC/1.0"]
    assert kinds({"supportedInterfaces": [listed], **here}) == ["JSONRPC/1.0"]


def test_merged_card_offers_both_versions_once() -> None:
    card: JsonObject = {
        "supportedInterfaces": [offer("JSONRPC"), offer("JSONRPC", "0.3")],
        "protocolVersion": "0.3",
        "url": "https://here.example/a",
        "preferredTransport": "JSONRPC",
    }
    assert kinds(card) == ["JSONRPC/1.0", "JSONRPC/0.3"]


def test_interface_of_another_origin_is_foreign_and_never_used() -> None:
    card: JsonObject = {
        "supportedInterfaces": [
            offer("JSONRPC", url="https://there.example/a"),
            offer("HTTP+JSON", url="http://here.example/a"),
            offer("JSONRPC", url="file:///etc/passwd"),
        ]
    }
    seen = read_offer(card, HERE)
    assert seen.usable == ()
    assert tuple(one.origin for one in seen.foreign) == (
        "https://there.example",
        "http://here.example",
    )


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("dial.example:9001", "http://dial.example:9001"),
        ("here.example:443", "https://here.example"),
        ("here.example", "https://here.example"),
        ("https://here.example", "https://here.example"),
    ],
)
def test_allowed_origins_determine_tls_of_a_grpc_address(url: str, origin: str) -> None:
    (interface,) = read_offer({"supportedInterfaces": [offer("GRPC", url=url)]}, HERE).usable
    assert interface.origin == origin


@pytest.mark.parametrize(
    ("grpc", "url", "origins"),
    [
        ("plaintext", "here.example:9001", ["http://here.example:9001"]),
        ("tls", "here.example:9001", ["https://here.example:9001"]),
        (None, "here.example:9001", []),
        ("plaintext", "other.example:9001", []),
        ("plaintext", "https://here.example:9001", []),
        ("plaintext", "here.example:443", ["https://here.example"]),
    ],
)
def test_grpc_setting_determines_how_the_host_of_the_card_is_dialled(
    grpc: Security | None, url: str, origins: list[str]
) -> None:
    """A card alone can send calls to no further port; what allowed_origins has counts first."""
    seen = read_offer({"supportedInterfaces": [offer("GRPC", url=url)]}, replace(HERE, grpc=grpc))
    assert [one.origin for one in seen.usable] == origins


def test_nonsense_in_a_card_is_read_over() -> None:
    card: JsonObject = {
        "supportedInterfaces": [
            "x",
            None,
            {},
            {"url": 7},
            offer("JSONRPC", "9.9"),
            offer("JSONRPC"),
        ],
        "additionalInterfaces": "none",
    }
    assert kinds(card) == ["JSONRPC/1.0"]


@pytest.mark.parametrize(
    ("configured", "said", "called"),
    [
        ("http://127.0.0.1:9001", "http://localhost:9001/a2a?x=1", "http://127.0.0.1:9001/a2a?x=1"),
        ("http://localhost:9001", "http://127.0.0.1:9001", "http://localhost:9001"),
        ("http://localhost:9001", "http://[::1]:9001/", "http://localhost:9001/"),
        ("http://[::1]:9001", "http://localhost:9001/", "http://[::1]:9001/"),
        ("http://127.0.0.1:9001", "http://0.0.0.0:9001/", "http://127.0.0.1:9001/"),
        ("http://agent:9001", "http://0.0.0.0:9001/%2Fa/", "http://agent:9001/%2Fa/"),
        ("http://agent:9001", "http://[::]:9001/", "http://agent:9001/"),
        # Another machine, port or scheme is another origin.
        ("http://agent:9001", "http://localhost:9001/", None),
        ("http://127.0.0.1:9001", "http://localhost:9002/", None),
        ("http://127.0.0.1:9001", "https://localhost:9001/", None),
        ("https://agent", "http://0.0.0.0/", None),
        ("http://127.0.0.1:9001", "http://127.0.0.2:9001/", None),
        ("http://127.0.0.1:9001", "http://localhost.example:9001/", None),
    ],
)
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
def test_card_may_call_its_own_machine_by_another_name(
    configured: str, said: str, called: str | None, binding: str
) -> None:
    allowed = AllowedTargets(frozenset({configured}), host_of(configured))
    found = read_offer({"supportedInterfaces": [offer(binding, url=said)]}, allowed)
    assert [one.url for one in found.usable] == ([called] if called else [])
    assert [one.origin for one in found.usable] == ([configured] if called else [])
    assert [one.url for one in found.foreign] == ([] if called else [said])


def test_machine_of_an_allowed_origin_is_no_machine_of_the_card() -> None:
    allowed = AllowedTargets(frozenset({"http://agent:9001", "http://other:9002"}), "agent")
    found = read_offer(
        {"supportedInterfaces": [offer("JSONRPC", url="http://0.0.0.0:9002/")]}, allowed
    )
    assert found.usable == ()
