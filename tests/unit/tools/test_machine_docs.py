"""The drawn state machines agree with the tables."""

import re

from passerelle.core.approval import machine as approval
from passerelle.core.session import machine as session
from passerelle.core.session import thread
from passerelle.core.task import machine as task
from passerelle.core.task.status import Status
from tools.machine_docs import render_state_machine

TEXT = render_state_machine()
ROW = re.compile(r"^\| (\w+) \| [^|]*\| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)


def read_rows() -> set[tuple[str, str, frozenset[str]]]:
    """Command, one source, and its targets, for every row with four columns."""
    return {
        (command, source, frozenset(() if targets == "stays" else targets.split(", ")))
        for command, sources, targets in ROW.findall(TEXT)
        for source in sources.split(", ")
    }


def test_every_row_of_the_tables_is_drawn_and_no_other() -> None:
    wanted = {
        (command.__name__, str(source or "none yet"), frozenset(str(t) for t in targets))
        for table in (task.TABLE, thread.TABLE, session.TABLE)
        for command, rows in table.items()
        for source, targets in rows.items()
    }
    assert read_rows() - {("command", "from", frozenset({"to"}))} == wanted


def test_every_status_lists_its_commands() -> None:
    for status in Status:
        taken = [command.__name__ for command, rows in task.TABLE.items() if status in rows]
        assert re.search(
            rf"^\| {status}(?: \(has ended\))? \| {', '.join(taken) or 'none'} \|$",
            TEXT,
            re.MULTILINE,
        )


def test_the_table_of_questions_is_that_of_the_machine() -> None:
    assert approval.render_table().rstrip() in TEXT


def test_an_ended_task_has_no_arrow_but_to_the_archive() -> None:
    leaving = re.findall(
        r"^ +(completed|failed|cancelled|timed_out) --> (\w+)",
        TEXT.split("## Thread")[0],
        re.MULTILINE,
    )
    assert len(leaving) == 4
    assert {target for _, target in leaving} == {"archived"}
