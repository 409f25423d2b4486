"""Push configs from A2A JSON and back."""

from __future__ import annotations

import pytest

from passerelle.a2a_mapping.push import (
    read_config,
    read_create,
    read_name,
    read_page,
    render_config,
)
from passerelle.core.errors import InvalidInput
from passerelle.core.push import PushConfig
from passerelle.core.wire.json import JsonObject

URL = "https://example.com/hook"
WHOLE: JsonObject = {
    "taskId": "task_1",
    "id": "mine",
    "url": URL,
    "token": "t0ken",
    "authentication": {"scheme": "Bearer", "credentials": "s3cret"},
}


def test_config_goes_in_and_comes_out_the_same() -> None:
    task, config = read_create(WHOLE, "1.0")
    assert (task, config.token, config.credentials) == ("task_1", "t0ken", "s3cret")
    assert render_config(task, config) == WHOLE


def test_secrets_do_not_show_in_a_repr() -> None:
    shown = repr(read_config(WHOLE, "1.0"))
    assert "t0ken" not in shown
    assert "s3cret" not in shown


def test_snake_case_and_absent_members_are_read() -> None:
    assert read_create({"task_id": "task_1", "url": URL}, "0.3") == (
        "task_1",
        PushConfig(URL, dialect="0.3"),
    )
    assert read_name({"task_id": "task_1"}).id is None
    page = read_page({"task_id": "t", "page_size": "2", "page_token": "x"})
    assert (page.page_size, page.page_token) == (2, "x")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"url": ""}, "url"),
        ({"url": "x" * 3_000}, "url"),
        ({"id": "a\nb"}, "id"),
        ({"id": "x" * 256}, "id"),
        ({"token": "a\r\nX: y"}, "token"),
        ({"token": "tökn"}, "token"),
        ({"token": "x" * 5_000}, "token"),
        ({"authentication": "Bearer"}, "authentication"),
        ({"authentication": {"credentials": "x"}}, "authentication.scheme"),
        ({"authentication": {"scheme": "Bea rer"}}, "authentication.scheme"),
        (
            {"authentication": {"scheme": "Bearer", "credentials": "a\nb"}},
            "authentication.credentials",
        ),
    ],
)
def test_malformed_member_is_named(change: JsonObject, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_config({**WHOLE, **change}, "1.0", "configuration.")
    assert caught.value.field == f"configuration.{field}"


def test_task_is_required() -> None:
    for read in (read_name, read_page):
        with pytest.raises(InvalidInput, match="taskId"):
            read({})
