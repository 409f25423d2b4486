"""A followed job: shown once for each change, across outages of the gateway and gaps of the stream."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pytest
from rich.console import Console

from passerelle.cli.watch.job_bar import JobBar
from passerelle.cli.watch.job_stream import follow_job
from passerelle.core.errors import CallerError, NotFound, RemoteError

if TYPE_CHECKING:
    from passerelle.core.wire.json import Json, JsonObject

PATH: Final = "/v1/jobs/se_1"
EVENTS: Final = "/v1/streams/jobs/events"


class Script:
    """Answers in their order; what was asked is kept."""

    def __init__(self, *answers: JsonObject | Exception) -> None:
        self.left = [*answers]
        self.asked: list[tuple[str, Json]] = []

    def read(self, path: str, params: Mapping[str, Json] | None = None, /) -> JsonObject:
        self.asked.append((path, (params or {}).get("after")))
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def job(status: str, **more: Json) -> JsonObject:
    return {"jobId": "se_1", "status": status, **more}


def page(cursor: str, *events: JsonObject) -> JsonObject:
    return {"cursor": cursor, "events": [*events]}


def row(name: str, status: str) -> JsonObject:
    return {"name": name, "row": {"jobId": name, "status": status}}


def follow(script: Script, patience_s: float = 0.0) -> list[str]:
    """The statuses until the job is over."""
    told: list[str] = []
    for answer in follow_job(script.read, PATH, patience_s):
        told.append(str(answer["status"]))
        if told[-1] == "completed":
            break
    return told


def test_only_changes_of_the_job_are_shown() -> None:
    script = Script(
        page("c-1"),
        job("running", title="batch"),
        page("c-2"),
        page("c-3", row("se_2", "completed"), row("se_1", "running")),
        page("c-4", row("se_1", "completed")),
    )
    assert follow(script) == ["running", "running", "completed"]
    assert script.asked == [
        (EVENTS, None),
        (PATH, None),
        (EVENTS, "c-1"),
        (EVENTS, "c-2"),
        (EVENTS, "c-3"),
    ]


def test_a_gateway_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("passerelle.cli.watch.job_stream.time.sleep", slept.append)
    away = RemoteError("no gateway answers")
    done = page("c-2", row("se_1", "completed"))
    script = Script(away, page("c-1"), away, page("c-1"), job("running"), away, away, done)
    assert follow(script, 60.0) == ["running", "completed"]
    assert script.asked[-1] == (EVENTS, "c-1"), "from where it was"
    assert len(slept) == 4
    with pytest.raises(RemoteError):
        follow(Script(away, away, page("c-1")), 0.0)


def test_a_gap_is_followed_by_a_read_and_a_missing_job_is_reported() -> None:
    gap = CallerError("what follows the cursor is kept no longer")
    again = Script(page("c-1"), job("running"), gap, page("c-9"), job("completed"))
    assert follow(again) == ["running", "completed"]
    gone: JsonObject = {"name": "se_1", "gone": True}
    with pytest.raises(NotFound):
        follow(Script(page("c-1"), job("running"), page("c-2", gone)))
    with pytest.raises(NotFound):
        follow(Script(page("c-1"), NotFound("job", "se_1")))


@pytest.mark.parametrize("width", [80, 120])
def test_the_bar_fits_and_its_counts_are_whole(width: int) -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, width=width, force_terminal=True, color_system=None)
    counts: dict[str, Json] = {"completed": 180, "failed": 12, "running": 8}
    with JobBar(console) as tell:
        tell(
            job("running", title="Translate all books of the library" * 3, items=200, counts=counts)
        )
    lines = [line for line in drawn.getvalue().replace("\x1b[2K", "").split("\n") if "/200" in line]
    assert lines
    for line in lines:
        shown = "".join(part for part in line.split("\r") if "/200" in part)
        assert len(shown) <= width, shown
        for said in ("192/200", "running running 8 failed 12", "Translate", "…"):
            assert said in shown
