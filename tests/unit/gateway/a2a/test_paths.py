"""The routing table of the face."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from passerelle.a2a_mapping.rpc import Method
from passerelle.a2a_mapping.version import LEGACY
from passerelle.gateway.a2a.face import Face
from passerelle.gateway.a2a.paths import CARD, NO_ROUTE, Resource, find_route, split_path

TABLE = {
    ("POST", ""): Resource.ENDPOINT,
    ("POST", "/"): Resource.ENDPOINT,
    ("POST", "/message:send"): Method.SEND_MESSAGE,
    ("POST", "/message:stream"): Method.SEND_STREAMING_MESSAGE,
    ("GET", "/tasks"): Method.LIST_TASKS,
    ("GET", "/tasks/t"): Method.GET_TASK,
    ("POST", "/tasks/t:cancel"): Method.CANCEL_TASK,
    ("GET", "/tasks/t:subscribe"): Method.SUBSCRIBE_TO_TASK,
    ("POST", "/tasks/t:subscribe"): Method.SUBSCRIBE_TO_TASK,
    ("GET", "/extendedAgentCard"): Method.GET_EXTENDED_CARD,
    ("GET", CARD): Resource.CARD,
    ("HEAD", CARD): Resource.CARD,
    ("POST", "/v1/message:send"): Method.SEND_MESSAGE,
    ("POST", "/v1/message:stream"): Method.SEND_STREAMING_MESSAGE,
    ("GET", "/v1/tasks/t"): Method.GET_TASK,
    ("POST", "/v1/tasks/t:cancel"): Method.CANCEL_TASK,
    ("GET", "/v1/tasks/t:subscribe"): Method.SUBSCRIBE_TO_TASK,
    ("POST", "/v1/tasks/t:subscribe"): Method.SUBSCRIBE_TO_TASK,
    ("GET", "/v1/tasks/t/pushNotificationConfigs"): Method.LIST_PUSH_CONFIGS,
    ("POST", "/v1/tasks/t/pushNotificationConfigs"): Method.CREATE_PUSH_CONFIG,
    ("GET", "/v1/tasks/t/pushNotificationConfigs/c"): Method.GET_PUSH_CONFIG,
    ("DELETE", "/v1/tasks/t/pushNotificationConfigs/c"): Method.DELETE_PUSH_CONFIG,
    ("GET", "/v1/card"): Method.GET_EXTENDED_CARD,
    ("GET", "/tasks/t/pushNotificationConfigs"): Method.LIST_PUSH_CONFIGS,
    ("POST", "/tasks/t/pushNotificationConfigs"): Method.CREATE_PUSH_CONFIG,
    ("GET", "/tasks/t/pushNotificationConfigs/c"): Method.GET_PUSH_CONFIG,
    ("DELETE", "/tasks/t/pushNotificationConfigs/c"): Method.DELETE_PUSH_CONFIG,
}


def test_every_row_of_the_table_is_served_and_nothing_else_is() -> None:
    verbs = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
    paths = {path for _, path in TABLE}
    for path in paths:
        for verb in verbs:
            assert find_route(path).verbs.get(verb) is TABLE.get((verb, path)), (verb, path)


def test_paths_below_v1_are_those_of_0_3() -> None:
    for _, path in TABLE:
        assert (find_route(path).version == LEGACY) is path.startswith("/v1/")


def test_every_operation_has_a_path() -> None:
    assert set(Method) <= set(TABLE.values())


@pytest.mark.parametrize(
    "path",
    [
        "//",
        "/tasks/",
        "/tasks/a/b",
        "/tasks//x",
        "/message",
        "/v1/tasks",
        "/v1",
        "/v1/",
        "/v1/extendedAgentCard",
        "/message:send/",
        "/Tasks",
    ],
)
def test_other_paths_are_nowhere(path: str) -> None:
    assert find_route(path) is NO_ROUTE


@given(st.from_regex(r"[A-Za-z0-9_~.-]+", fullmatch=True))
def test_task_id_is_between_the_slash_and_the_verb(task_id: str) -> None:
    for suffix in ("", ":cancel", ":subscribe"):
        assert find_route(f"/tasks/{task_id}{suffix}").named == {"id": task_id}


def test_colon_that_is_no_verb_belongs_to_the_id() -> None:
    assert find_route("/tasks/a:b").named == {"id": "a:b"}
    assert find_route("/tasks/a:b:cancel").named == {"id": "a:b"}


def test_path_of_a_push_config_names_its_task_and_itself() -> None:
    assert find_route("/tasks/t/pushNotificationConfigs").named == {"taskId": "t"}
    assert find_route("/tasks/t/pushNotificationConfigs/c").named == {"taskId": "t", "id": "c"}


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("/agents/echo", ("echo", "")),
        ("/agents/echo/", ("echo", "/")),
        ("/agents/echo/tasks/t:cancel", ("echo", "/tasks/t:cancel")),
        ("/agents/", ("", "")),
        ("/agents", None),
        ("/", ("passerelle", "/")),
        ("/message:send", ("passerelle", "/message:send")),
        ("/tasks", ("passerelle", "/tasks")),
        ("/tasks/t:cancel", ("passerelle", "/tasks/t:cancel")),
        (CARD, ("passerelle", CARD)),
        ("/agents/passerelle/tasks", ("passerelle", "/tasks")),
        ("/v1/tasks", None),
        ("/v1/message:send", None),
        ("/healthz", None),
    ],
)
def test_path_names_an_agent(path: str, split: tuple[str, str] | None) -> None:
    assert split_path(path) == split


@pytest.mark.parametrize(
    ("kind", "verb", "path", "ours"),
    [
        ("http", "POST", "/agents/echo", True),
        ("http", "GET", "/agents", True),
        ("http", "POST", "/", True),
        ("http", "GET", "/", False),
        ("http", "HEAD", "/", False),
        ("http", "GET", CARD, True),
        ("http", "POST", "/message:stream", True),
        ("http", "GET", "/tasks/t", True),
        ("http", "GET", "/extendedAgentCard", True),
        ("http", "GET", "/v1/tasks", False),
        ("http", "GET", "/healthz", False),
        ("http", "GET", "/agentsx", False),
        ("websocket", "GET", "/agents/echo", False),
        ("lifespan", "", "", False),
    ],
)
def test_face_takes_the_requests_for_agents(kind: str, verb: str, path: str, *, ours: bool) -> None:
    assert Face.matches({"type": kind, "method": verb, "path": path}) is ours
