"""Canonical 1.0 objects of every shape, without those that 0.3 cannot express."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, TypeAlias

from hypothesis import strategies as st

from passerelle.a2a_mapping.states import UNSPECIFIED
from passerelle.core.wire.json import Json, JsonObject

# The value of a member. A list of objects is no list of values to a type checker, so the type stays general.
Part: TypeAlias = st.SearchStrategy[Any]
STATES = [
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_WORKING",
    "TASK_STATE_COMPLETED",
    "TASK_STATE_FAILED",
    "TASK_STATE_CANCELED",
    "TASK_STATE_INPUT_REQUIRED",
    "TASK_STATE_REJECTED",
    "TASK_STATE_AUTH_REQUIRED",
    UNSPECIFIED,
]
ids = st.text("abcdef0123456789-", min_size=1, max_size=12)
words = st.text(max_size=12)
names = st.text("abcdefgh", min_size=1, max_size=6)
# Doubles are all that the SDK's protobuf can carry, so the oracle gets numbers that are the same in both.
values: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(names, below, max_size=3),
    max_leaves=6,
)
structs = st.dictionaries(names, values, min_size=1, max_size=3)
uris = st.lists(names.map(lambda name: f"urn:{name}"), min_size=1, max_size=2, unique=True)


def _whole(required: Mapping[str, Part], **optional: Part) -> st.SearchStrategy[JsonObject]:
    return st.fixed_dictionaries(required, optional=optional)


_file = {"mediaType": st.just("text/plain"), "filename": names, "metadata": structs}
parts: st.SearchStrategy[Json] = st.one_of(
    _whole({"text": words}, metadata=structs),
    _whole(
        {"raw": st.binary(max_size=9).map(lambda raw: base64.b64encode(raw).decode())},
        **_file,
    ),
    _whole({"url": names.map(lambda name: f"https://{name}.example/")}, **_file),
    _whole({"data": values}, metadata=structs),
)
messages = _whole(
    {
        "messageId": ids,
        "role": st.sampled_from(["ROLE_USER", "ROLE_AGENT"]),
        "parts": st.lists(parts, min_size=1, max_size=3),
    },
    contextId=ids,
    taskId=ids,
    metadata=structs,
    extensions=uris,
)
statuses = _whole(
    {"state": st.sampled_from(STATES)},
    message=messages,
    timestamp=st.just("2026-11-21T10:00:00.123Z"),
)
artifacts = _whole(
    {"artifactId": ids, "parts": st.lists(parts, min_size=1, max_size=2)},
    name=names,
    description=names,
    metadata=structs,
    extensions=uris,
)
tasks = _whole(
    {"id": ids, "contextId": ids, "status": statuses},
    history=st.lists(messages, min_size=1, max_size=2),
    artifacts=st.lists(artifacts, min_size=1, max_size=2),
    metadata=structs,
)
events = _whole({"taskId": ids, "contextId": ids, "status": statuses}, metadata=structs)
pieces = _whole(
    {
        "taskId": ids,
        "contextId": ids,
        "artifact": artifacts,
        "append": st.booleans(),
        "lastChunk": st.booleans(),
    },
    metadata=structs,
)
responses: st.SearchStrategy[JsonObject] = st.one_of(
    _whole({"task": tasks}),
    _whole({"message": messages}),
    _whole({"statusUpdate": events}),
    _whole({"artifactUpdate": pieces}),
)
configs = _whole(
    {"taskId": ids, "id": ids, "url": names.map(lambda name: f"https://{name}.example/")},
    token=names,
    authentication=_whole({"scheme": names}, credentials=names),
)
sends = _whole(
    {"message": messages},
    configuration=_whole(
        {"returnImmediately": st.booleans()},
        acceptedOutputModes=st.lists(names, min_size=1, max_size=2),
        historyLength=st.integers(1, 50),
    ),
    metadata=structs,
)
