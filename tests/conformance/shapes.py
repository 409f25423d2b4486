"""Checks against the schema of A2A 1.0: only known members, and all required ones (sections 4 and 5.7).

The oracle is the protobuf of the SDK, read strictly: an unknown member is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, cast

from a2a.types import a2a_pb2
from a2a.utils.proto_utils import validate_proto_required_fields
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from tests.conformance.callers import Json

TERMINAL: Final = frozenset(
    f"TASK_STATE_{state}" for state in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")
)
COMPLETED: Final = "TASK_STATE_COMPLETED"
WAITING: Final = "TASK_STATE_INPUT_REQUIRED"
WORKING: Final = "TASK_STATE_WORKING"
TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
_CAMEL: Final = re.compile(r"[a-z][a-zA-Z0-9]*")
_FREE: Final = frozenset({"metadata", "data"})


def check_shape(said: Json, kind: type[Message]) -> None:
    """Checks that ``said`` is one of those messages, closed and complete."""
    message = ParseDict(said, kind())
    validate_proto_required_fields(message)
    for name, _ in list_members(said):
        assert _CAMEL.fullmatch(name), f"{name} is not in camelCase"


def check_task(task: Json) -> None:
    """Checks a whole Task."""
    check_shape(task, a2a_pb2.Task)


def check_answer(answer: Json) -> None:
    """Checks the answer of SendMessage."""
    check_shape(answer, a2a_pb2.SendMessageResponse)


def check_item(item: Json) -> None:
    """Checks an item of a stream."""
    assert len(item) == 1, item
    check_shape(item, a2a_pb2.StreamResponse)


def list_members(said: object) -> Iterator[tuple[str, object]]:
    """Every member below, except those of free-form values of callers and agents."""
    if isinstance(said, dict):
        for name, value in cast("Json", said).items():
            yield name, value
            if name not in _FREE:
                yield from list_members(value)
    elif isinstance(said, list):
        for value in cast("list[object]", said):
            yield from list_members(value)


def name_items(items: list[Json]) -> list[str]:
    """The kind of each item of a stream."""
    return [next(iter(item)) for item in items]


def find_state(item: Json) -> str:
    """The state in an item of a stream; empty if it has none."""
    match item:
        case {"task": {"status": {"state": str(state)}}}:
            return state
        case {"statusUpdate": {"status": {"state": str(state)}}}:
            return state
        case _:
            return ""
