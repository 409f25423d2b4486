"""The shipped cards are cards of A2A 1.0."""

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from a2a.compat.v0_3.types import AgentCard as LegacyCard
from a2a.types import AgentCard
from google.protobuf.json_format import MessageToDict, ParseDict

from passerelle.a2a_mapping.cards import AgentAddress, rewrite_card
from passerelle.gateway.a2a.cards import KEY_EDGE

KNOWN_ONLY_WHEN_RUNNING = {
    "version": "0",
    "supportedInterfaces": [
        {"url": "http://127.0.0.1/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
}


def read(name: str) -> dict[str, Any]:
    card: dict[str, Any] = json.loads(
        files("passerelle.agent_cards").joinpath(name).read_text("utf-8")
    )
    return card


def as_understood_by_the_sdk(card: dict[str, Any]) -> dict[str, Any]:
    return MessageToDict(ParseDict(card, AgentCard()), always_print_fields_with_no_presence=False)


def test_example_card_is_a_whole_card() -> None:
    card = read("examples/echo.json")
    assert as_understood_by_the_sdk(card).keys() == card.keys()


def test_gateway_card_leaves_open_what_only_the_process_knows() -> None:
    card = read("gateway.json")
    assert not card.keys() & KNOWN_ONLY_WHEN_RUNNING.keys()
    whole = card | KNOWN_ONLY_WHEN_RUNNING
    assert as_understood_by_the_sdk(whole).keys() == whole.keys()


@pytest.mark.parametrize(
    "name", ["gateway.json", "examples/echo.json", "examples/archive-0.3.json"]
)
def test_each_skill_can_be_found_by_its_tags(name: str) -> None:
    assert all(skill["id"] and skill["tags"] for skill in read(name)["skills"])


def test_example_of_an_older_peer_is_a_card_of_its_version() -> None:
    card = read("examples/archive-0.3.json")
    known = LegacyCard.model_validate(card).model_dump(by_alias=True, exclude_none=True)
    assert known.keys() == card.keys()


def test_served_example_is_what_the_gateway_makes_of_the_older_one() -> None:
    place = AgentAddress(
        "archive",
        "http://127.0.0.1:9002/.well-known/agent-card.json",
        "https://agents.example.com/agents/archive",
    )
    edge = replace(KEY_EDGE, push=True, extended=True, versions=("1.0", "0.3"))
    served = read("examples/archive-served.json")
    assert rewrite_card(read("examples/archive-0.3.json"), place, edge) == served
    assert as_understood_by_the_sdk(served).keys() == served.keys()
    assert "127.0.0.1" not in str(served)
