"""What a request says and what its answer has to contain."""

import pytest

from bench.steps import CONTEXT, NUMBER, TASK, CallerProgress, PreparedRequest, RequestStep

HERE = "http://127.0.0.1:80"


@pytest.mark.parametrize(
    ("url", "path", "target"),
    [
        (f"{HERE}/", "", "/"),
        (f"{HERE}/", "/message:send", "/message:send"),
        (f"{HERE}/agents/echo", "", "/agents/echo"),
        (f"{HERE}/agents/echo", "/message:send", "/agents/echo/message:send"),
    ],
)
def test_a_step_goes_to_its_path_below_the_url(url: str, path: str, target: str) -> None:
    request = PreparedRequest(url, RequestStep("", "", path)).write("", CallerProgress())
    assert request.startswith(f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1:80\r\n".encode())


def test_marks_are_filled_in_and_counted() -> None:
    step = RequestStep(
        f"{CONTEXT}/{TASK}/{NUMBER}", "", headers={"Idempotency-Key": f"key-{NUMBER}"}
    )
    written = PreparedRequest(HERE, step).write("mine", CallerProgress("context", "task")).decode()
    head, _, body = written.partition("\r\n\r\n")
    number = body.removeprefix("context/task/")
    assert len(number) == 8
    assert number.isdecimal()
    assert f"\r\nIdempotency-Key: key-{number}\r\n" in head
    assert "\r\nAuthorization: Bearer mine\r\n" in head
    assert f"\r\nContent-Length: {len(body)}" in head


def test_a_caller_without_a_key_shows_none() -> None:
    assert b"Authorization" not in PreparedRequest(HERE, RequestStep("", "")).write(
        "", CallerProgress()
    )


@pytest.mark.parametrize(
    ("status", "answer", "fault"),
    [
        (200, b"line line done", None),
        (200, b"line line", "200: line line"),
        (200, b"line done", "line 1 times in 200: line done"),
        (200, b"line line line done", "line 3 times in 200: line line line done"),
        (503, b"line line done", "503: line line done"),
    ],
)
def test_what_is_counted_comes_exactly_so_often(
    status: int, answer: bytes, fault: str | None
) -> None:
    request = PreparedRequest(HERE, RequestStep("", "done", counted="line", times=2))
    assert request.find_fault(status, answer) == fault


@pytest.mark.parametrize("answer", [b'{"result":%b}', b"%b"])
def test_ids_are_read_in_either_binding(answer: bytes) -> None:
    progress = CallerProgress()
    progress.learn(answer % b'{"task":{"id":"t","contextId":"c"}}')
    assert (progress.context, progress.task) == ("c", "t")
