"""Logs: nouns with ids, and no secret in any form."""

import contextvars
import io
import json
import logging
from typing import Any, cast

import pytest
import structlog

from passerelle.core.wire.trace import read_trace
from passerelle.runtime.common.carried import TRACE
from passerelle.runtime.common.clock import SystemIds
from passerelle.runtime.common.secret import Secret
from passerelle.runtime.observability.logs import (
    INSTANCE,
    REQUEST,
    LogFormat,
    Requests,
    configure_logs,
    explain_fault,
)

SECRETS = ("hunter2", "psr_0123456789abc")


@pytest.fixture
def out() -> io.StringIO:
    stream = io.StringIO()
    configure_logs("info", "json", stream)
    return stream


def read(out: io.StringIO) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(out.getvalue().splitlines()[-1]))


def test_event_is_one_line_of_json_with_time_level_and_ids(out: io.StringIO) -> None:
    structlog.get_logger().info("run.lost", task="task_2f1", run="run_2f1")
    line = read(out)
    assert (line["event"], line["task"], line["level"]) == ("run.lost", "task_2f1", "info")
    assert line["time"].endswith("Z")


def test_lines_name_their_request_their_trace_and_their_instance(out: io.StringIO) -> None:
    def serve() -> str | None:
        INSTANCE.set("inst_1")
        requests.begin()
        TRACE.set(read_trace("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", None))
        structlog.get_logger().info("run.lost", task="task_2f1")
        return REQUEST.get()

    requests = Requests(SystemIds())
    first, second = contextvars.copy_context().run(serve), contextvars.copy_context().run(serve)
    assert first != second
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["request"] for line in lines] == [first, second]
    assert {line["trace"] for line in lines} == {"0af7651916cd43dd8448eb211c80319c"}
    assert {line["instance"] for line in lines} == {"inst_1"}


def test_fields_of_a_log_line_are_not_overwritten(out: io.StringIO) -> None:
    def say() -> None:
        Requests(SystemIds()).begin()
        structlog.get_logger().info("a2a.request", request="its own", trace=None)

    contextvars.copy_context().run(say)
    assert read(out)["request"] == "its own"
    structlog.get_logger().info("config.reloaded")
    assert "request" not in read(out)


def test_internal_error_names_its_request_in_the_log() -> None:
    def fail() -> tuple[object, str | None]:
        Requests(SystemIds()).begin()
        return explain_fault().details["request"], REQUEST.get()

    told, known = contextvars.copy_context().run(fail)
    assert told == known is not None


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize(
    "fields",
    [
        {"value": Secret("hunter2")},
        {"inside": {"deep": [Secret("hunter2")]}},
        {"inside": [[[[[[[[{"token": "hunter2"}, Secret("hunter2"), "***"]]]]]]]], "***": 1},
        {"token": "hunter2"},
        {"Authorization": "Bearer hunter2"},
        {"headers": {"authorization": "hunter2", "x-api-key": "hunter2"}},
        {"client_secret": "hunter2"},
        {"password": b"hunter2"},
        {"credential": ["hunter2"]},
        {"line": "sent Authorization: Bearer hunter2 to the peer"},
        {"line": "the key psr_0123456789abc is used"},
        {"url": "redis://user:hunter2@127.0.0.1:6379/0"},
    ],
)
def test_secret_prints_as_three_stars(form: LogFormat, fields: dict[str, object]) -> None:
    stream = io.StringIO()
    configure_logs("info", form, stream)
    structlog.get_logger().info("peer.called", **fields)
    assert "***" in stream.getvalue()
    assert not any(secret in stream.getvalue() for secret in SECRETS)


@pytest.mark.parametrize("form", ["json", "console"])
def test_trace_of_an_exception_shows_no_local_variable(form: LogFormat) -> None:
    stream = io.StringIO()
    configure_logs("info", form, stream)

    def fail(inner: str) -> None:
        raise ValueError("it broke", len(inner))

    try:
        fail(SECRETS[0])
    except ValueError:
        structlog.get_logger().exception("worker.failed")
    assert "it broke" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


def test_levels_that_a_library_set_for_itself_do_not_count() -> None:
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    stream = io.StringIO()
    configure_logs("info", "json", stream)
    logging.getLogger("uvicorn.error").warning("heard")
    assert read(stream)["event"] == "heard"


def test_records_of_libraries_go_the_same_way(out: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").warning("closed %s", "redis://u:hunter2@h")
    line = read(out)
    assert (line["logger"], line["level"]) == ("uvicorn.error", "warning")
    assert line["event"] == "closed redis://***@h"


def test_second_configuration_replaces_the_first(out: io.StringIO) -> None:
    other = io.StringIO()
    configure_logs("warning", "json", other)
    logger = structlog.get_logger()
    logger.info("quiet")
    logger.warning("loud")
    logging.getLogger("uvicorn.error").error("library")
    assert out.getvalue() == ""
    assert [json.loads(line)["event"] for line in other.getvalue().splitlines()] == [
        "loud",
        "library",
    ]
