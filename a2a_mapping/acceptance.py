"""Acceptance conditions of a task, and how many of them its content meets (TR-13, PO-7).

A condition is an object with exactly one of three members::

    {"artifact": {"name": "report", "mediaType": "application/pdf", "count": 1}}
    {"schema": {…}, "artifact": {"name": "order"}}     some data part is an instance of the JSON Schema
    {"review": "Is the picture the one that was wanted?"}

``artifact`` next to ``schema`` restricts the artifacts that are searched. A media type may end in ``/*``. A review is
for a person: this module only returns its question. A schema may refer to itself only, and its patterns are matched in
linear time, since schemas and data are both untrusted.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import jsonschema_rs
import orjson

from passerelle.a2a_mapping.members import object_at, objects_at, text_at, whole_at
from passerelle.core.errors import InvalidInput
from passerelle.core.frozen import frozen
from passerelle.core.wire.json import Json, JsonObject

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_CONDITIONS: Final = 8
MOST_BYTES: Final = 4096
"""Size limit of all conditions together: they are in the record of the task."""
REVIEW_LIMIT: Final = 500
_KINDS: Final = (
    frozenset({"artifact"}),
    frozenset({"schema"}),
    frozenset({"schema", "artifact"}),
    frozenset({"review"}),
)
_ARTIFACT_MEMBERS: Final = frozenset({"name", "mediaType", "count"})


@frozen
class Judged:
    """The unmet conditions of a content, in words; and the question of the review, if any."""

    unmet: tuple[str, ...]
    review: str | None


def read_conditions(value: Json, at: str) -> tuple[JsonObject, ...]:
    """Reads and checks conditions; ``at`` is their path in the request.

    Raises:
        InvalidInput: naming the field.
    """
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise InvalidInput(at, "must be a list of objects")
    conditions = tuple(one for one in value if isinstance(one, dict))
    if len(conditions) > MOST_CONDITIONS:
        raise InvalidInput(at, f"at most {MOST_CONDITIONS} conditions")
    if len(orjson.dumps(conditions)) > MOST_BYTES:
        raise InvalidInput(at, f"at most {MOST_BYTES} bytes")
    if sum("review" in one for one in conditions) > 1:
        raise InvalidInput(at, "at most one review")
    for number, condition in enumerate(conditions):
        _check(condition, f"{at}[{number}]")
    return conditions


def _check(condition: JsonObject, at: str) -> None:
    if frozenset(condition) not in _KINDS:
        raise InvalidInput(
            at, "must have one of artifact, schema (with or without artifact), review"
        )
    if "review" in condition:
        question = text_at(condition, "review")
        if not 0 < len(question) <= REVIEW_LIMIT:
            raise InvalidInput(f"{at}.review", f"must be a text of 1 to {REVIEW_LIMIT} characters")
    if "artifact" in condition:
        _check_artifact(condition["artifact"], f"{at}.artifact")
    if "schema" in condition:
        _check_schema(condition["schema"], f"{at}.schema")


def _check_artifact(value: Json, at: str) -> None:
    if not isinstance(value, dict) or not _ARTIFACT_MEMBERS.issuperset(value):
        raise InvalidInput(at, "must be an object with name, mediaType or count")
    for name in ("name", "mediaType"):
        if name in value and not text_at(value, name):
            raise InvalidInput(f"{at}.{name}", "must be a text")
    if "count" in value and (whole_at(value, "count") or 0) < 1:
        raise InvalidInput(f"{at}.count", "must be a whole number from 1 on")


def _check_schema(value: Json, at: str) -> None:
    if not isinstance(value, dict):
        raise InvalidInput(at, "must be an object")
    try:
        _compile(orjson.dumps(value))
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(at, f"is not a usable JSON Schema: {reason[:200]}") from None


@lru_cache(maxsize=128)
def _compile(schema: bytes) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        orjson.loads(schema), retriever=_refuse, pattern_options=jsonschema_rs.RegexOptions()
    )


def _refuse(uri: str) -> Json:
    message = f"refers to {uri[:80]}, and may refer to itself only"
    raise ValueError(message)


def judge(conditions: Sequence[JsonObject], task: JsonObject) -> Judged:
    """Checks the content of a task against the conditions; total."""
    artifacts = objects_at(task, "artifacts")
    unmet = tuple(
        _describe(condition)
        for condition in conditions
        if "review" not in condition and not _is_met(condition, artifacts)
    )
    review = next((text_at(one, "review") for one in conditions if "review" in one), None)
    return Judged(unmet, review)


def _is_met(condition: JsonObject, artifacts: list[JsonObject]) -> bool:
    wanted = object_at(condition, "artifact")
    found = [one for one in artifacts if _matches(one, wanted)]
    if "schema" not in condition:
        return len(found) >= (whole_at(wanted, "count") or 1)
    validator = _compile(orjson.dumps(condition["schema"]))
    return any(
        "data" in part and validator.is_valid(part["data"])
        for artifact in found
        for part in objects_at(artifact, "parts")
    )


def _matches(artifact: JsonObject, wanted: JsonObject) -> bool:
    name, kind = text_at(wanted, "name"), text_at(wanted, "mediaType")
    if name and text_at(artifact, "name") != name:
        return False
    parts = objects_at(artifact, "parts")
    return not kind or any(_has_type(part, kind) for part in parts)


def _has_type(part: JsonObject, kind: str) -> bool:
    given = text_at(part, "mediaType").partition(";")[0].strip().lower()
    kind = kind.lower()
    return given.startswith(kind[:-1]) if kind.endswith("/*") else given == kind


def _describe(condition: JsonObject) -> str:
    """The condition in one line: artifact names come from the operator or the caller, never from the agent."""
    wanted = object_at(condition, "artifact")
    name, kind = text_at(wanted, "name"), text_at(wanted, "mediaType")
    what = "".join([f" {name!r}" if name else "", f" of type {kind}" if kind else ""])
    if "schema" in condition:
        return f"data that fits the schema in an artifact{what}"
    count = whole_at(wanted, "count") or 1
    return f"{count} artifacts{what}" if count > 1 else f"an artifact{what}"
