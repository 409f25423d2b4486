"""States and roles of agents: each spelling of A2A is read, and nothing else is guessed."""

from __future__ import annotations

import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.types import a2a_pb2

from passerelle.a2a_mapping.enums import name_enums, read_role, read_state
from passerelle.a2a_mapping.states import CANCELED, COMPLETED, WORKING
from passerelle.core.wire.json import Json, JsonObject


@pytest.mark.parametrize("number", a2a_pb2.TaskState.values())
def test_state_is_read_by_the_number_of_either_protobuf(number: int) -> None:
    name = a2a_pb2.TaskState.Name(number)
    assert read_state(number) == name
    assert read_state(a2a_v0_3_pb2.TaskState.Name(number)) == name


@pytest.mark.parametrize("number", a2a_pb2.Role.values())
def test_role_is_read_by_its_number(number: int) -> None:
    assert read_role(number) == a2a_pb2.Role.Name(number)


def test_unknown_role_stays() -> None:
    # A ProtoJSON parser reads a number that it does not know, but no name.
    assert [read_role(role) for role in (7, -1, "system", None)] == [7, -1, "system", None]


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("completed", COMPLETED),
        ("canceled", CANCELED),
        ("input-required", "TASK_STATE_INPUT_REQUIRED"),
        ("Completed", "Completed"),
        ("cancelled", "cancelled"),
        (9, "9"),
        (-1, "-1"),
        (True, True),
        (3.5, 3.5),
        (None, None),
        ({}, {}),
    ],
)
def test_what_is_no_spelling_of_a2a_stays(said: Json, read: Json) -> None:
    assert read_state(said) == read


@pytest.mark.requirement("ST-21")
def test_every_place_of_an_answer_is_named() -> None:
    def task() -> JsonObject:
        said: JsonObject = {"role": 2, "parts": [{"data": {"role": 1, "state": 3}}]}
        return {"status": {"state": 2, "message": said}, "history": [{"role": "user"}, 5]}

    ours: JsonObject = {
        "status": {
            "state": WORKING,
            "message": {"role": "ROLE_AGENT", "parts": [{"data": {"role": 1, "state": 3}}]},
        },
        "history": [{"role": "ROLE_USER"}, 5],
    }
    update: JsonObject = {"status": {"state": "working"}}
    answers: list[tuple[JsonObject, JsonObject]] = [
        (task(), ours),
        ({"task": task()}, {"task": ours}),
        (
            {"tasks": [task(), task()], "nextPageToken": ""},
            {"tasks": [ours, ours], "nextPageToken": ""},
        ),
        ({"statusUpdate": update}, {"statusUpdate": {"status": {"state": WORKING}}}),
        ({"message": {"role": 2}}, {"message": {"role": "ROLE_AGENT"}}),
        ({"status": "x", "task": 3, "message": []}, {"status": "x", "task": 3, "message": []}),
    ]
    for answer, named in answers:
        name_enums(answer)
        assert answer == named
