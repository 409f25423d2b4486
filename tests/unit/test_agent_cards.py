"""The shipped cards are cards of A2A 1.0."""

import json
from importlib.resources import files
from typing import Any

import pytest
from a2a.types import AgentCard
from google.protobuf.json_format import MessageToDict, ParseDict

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


@pytest.mark.parametrize("name", ["gateway.json", "examples/echo.json"])
def test_each_skill_can_be_found_by_its_tags(name: str) -> None:
    assert all(skill["id"] and skill["tags"] for skill in read(name)["skills"])
