"""Conditions of a task: which are taken, and what meets them."""

from __future__ import annotations

import pytest

from passerelle.a2a_mapping.acceptance import MOST_BYTES, MOST_CONDITIONS, judge, read_conditions
from passerelle.core.errors import InvalidInput
from passerelle.core.wire.json import Json, JsonObject

IMAGE: JsonObject = {"mediaType": "image/png", "raw": "eA=="}
TASK: JsonObject = {
    "artifacts": [
        {"artifactId": "1", "name": "sketch", "parts": [IMAGE]},
        {"artifactId": "2", "name": "sketch", "parts": [{"text": "words"}]},
        {"artifactId": "3", "name": "order", "parts": [{"data": {"total": 3}}]},
    ]
}
TOTAL: JsonObject = {"type": "object", "required": ["total"]}


@pytest.mark.requirement("TR-13")
@pytest.mark.parametrize(
    ("condition", "is_met"),
    [
        ({"artifact": {}}, True),
        ({"artifact": {"name": "sketch"}}, True),
        ({"artifact": {"name": "sketch", "count": 2}}, True),
        ({"artifact": {"name": "sketch", "count": 3}}, False),
        ({"artifact": {"mediaType": "image/*"}}, True),
        ({"artifact": {"mediaType": "IMAGE/PNG"}}, True),
        ({"artifact": {"mediaType": "application/pdf"}}, False),
        ({"artifact": {"name": "order", "mediaType": "image/png"}}, False),
        ({"schema": TOTAL}, True),
        ({"schema": TOTAL, "artifact": {"name": "order"}}, True),
        ({"schema": TOTAL, "artifact": {"name": "sketch"}}, False),
        ({"schema": {"properties": {"total": {"minimum": 4}}}}, False),
    ],
)
def test_condition_is_met_only_if_the_artifacts_match(condition: JsonObject, is_met: bool) -> None:  # noqa: FBT001  a row
    (read,) = read_conditions([condition], "acceptance")
    judged = judge([read], TASK)
    assert (judged.unmet == ()) is is_met
    assert judged.review is None


def test_review_is_for_a_person_and_never_met_by_content() -> None:
    judged = judge([{"review": "well?"}], TASK)
    assert (judged.unmet, judged.review) == ((), "well?")


def test_pattern_of_a_caller_takes_linear_time() -> None:
    slow: JsonObject = {"schema": {"type": "string", "pattern": "^(a+)+$"}}
    data: JsonObject = {"artifacts": [{"parts": [{"data": "a" * 50_000 + "b"}]}]}
    assert len(judge(read_conditions([slow], "x"), data).unmet) == 1


NO_CONDITIONS: list[tuple[Json, str]] = [
    ("report", "x"),
    ([1], "x"),
    ([{}], "x[0]"),
    ([{"artifact": {}, "review": "a"}], "x[0]"),
    ([{"artifact": {"size": 3}}], "x[0].artifact"),
    ([{"artifact": {"name": ""}}], "x[0].artifact.name"),
    ([{"artifact": {"count": 0}}], "x[0].artifact.count"),
    ([{"schema": []}], "x[0].schema"),
    ([{"schema": {"type": "nonsense"}}], "x[0].schema"),
    ([{"schema": {"$ref": "http://127.0.0.1:9/schema"}}], "x[0].schema"),
    ([{"schema": {"$ref": "file:///etc/passwd"}}], "x[0].schema"),
    ([{"schema": {"pattern": "(?=a)b"}}], "x[0].schema"),
    ([{"review": ""}], "x[0].review"),
    ([{"review": "a"}, {"review": "b"}], "x"),
    ([{"artifact": {}} for _ in range(MOST_CONDITIONS + 1)], "x"),
    ([{"artifact": {"name": "n" * MOST_BYTES}}], "x"),
]


@pytest.mark.parametrize(("value", "field"), NO_CONDITIONS)
def test_invalid_condition_is_refused_with_its_path(value: Json, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_conditions(value, "x")
    assert refused.value.field == field
