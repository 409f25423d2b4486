"""Errors of a request in the gateway's own words, with the member that was meant."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, get_args

import pytest
from pydantic import Field
from pydantic_core.core_schema import ErrorType

from passerelle.core.commands import RespondAction
from passerelle.core.errors import InvalidInput
from passerelle.core.wire import wire_faults
from passerelle.core.wire.codec import from_wire
from passerelle.core.wire.json import Json
from passerelle.core.wire.record import record

# Words of the library, or of the language that it is written for.
FOREIGN: Final = re.compile(
    r"argument|pydantic|dataclass|dict\b|dictionary|tuple|\binput\b|validat|instance|python|keyword|field required",
    re.IGNORECASE,
)


@record
class Inner:
    """A part."""

    how_many: Annotated[int, Field(ge=1, le=9)] = 1


@record
class Asked:
    """A request."""

    agent_name: str
    kind: Literal["low", "HIGH"] = "low"
    inner: Inner | None = None
    listed: tuple[Inner, ...] = ()
    is_on: bool = False
    words: Annotated[str, Field(min_length=2, max_length=4)] = "abc"


def refuse(wire: Json) -> tuple[str, str]:
    with pytest.raises(InvalidInput) as refused:
        from_wire(Asked, wire)
    return refused.value.field, refused.value.reason


@pytest.mark.parametrize(
    ("wire", "field", "reason"),
    [
        ({}, "agentName", "is required"),
        ({"agentName": 1}, "agentName", "should be a text"),
        (
            {"agentNam": "a", "agentName": "a"},
            "agentNam",
            "is not known here; did you mean agentName?",
        ),
        ({"agentName": "a", "zzz": 1}, "zzz", "is not known here"),
        ({"agentName": "a", "kind": "mid"}, "kind", "should be 'low' or 'HIGH'"),
        (
            {"agentName": "a", "inner": {"howmany": 3}},
            "inner.howmany",
            "is not known here; did you mean howMany?",
        ),
        (
            {"agentName": "a", "listed": [{}, {"howMany2": 3}]},
            "listed.1.howMany2",
            "is not known here; did you mean howMany?",
        ),
        ({"agentName": "a", "inner": {"howMany": 0}}, "inner.howMany", "should be 1 or more"),
        ({"agentName": "a", "inner": {"howMany": 10}}, "inner.howMany", "should be 9 or less"),
        (
            {"agentName": "a", "inner": {"howMany": "3"}},
            "inner.howMany",
            "should be a whole number",
        ),
        ({"agentName": "a", "inner": []}, "inner", "should be an object"),
        ({"agentName": "a", "listed": {}}, "listed", "should be a list"),
        ({"agentName": "a", "isOn": "yes"}, "isOn", "should be true or false"),
        ({"agentName": "a", "words": "a"}, "words", "should have 2 or more characters"),
        ({"agentName": "a", "words": "abcde"}, "words", "should have 4 characters or fewer"),
        ([], "Asked", "should be an object"),
    ],
)
def test_fault_names_the_member_and_what_it_should_be(wire: Json, field: str, reason: str) -> None:
    assert refuse(wire) == (field, reason)
    assert not FOREIGN.search(reason)


def test_a_command_of_the_api_suggests_the_member_that_was_meant() -> None:
    said: Json = {"actionId": "a", "rev": 1, "digest": "d", "optionId": "o", "decisonId": "x"}
    with pytest.raises(InvalidInput) as refused:
        from_wire(RespondAction, said)
    assert str(refused.value) == "decisionId: is required; is 'decisonId' meant?"


def test_no_message_in_the_table_has_words_of_a_library() -> None:
    for sentence in (*wire_faults.PLAIN.values(), *wire_faults.WITH_VALUES.values()):
        assert not FOREIGN.search(sentence), sentence


def test_kinds_of_the_table_are_kinds_that_there_are() -> None:
    known = set(get_args(ErrorType))
    listed = {*wire_faults.PLAIN, *wire_faults.WITH_VALUES, *wire_faults.UNKNOWN}
    assert listed <= known, listed - known
