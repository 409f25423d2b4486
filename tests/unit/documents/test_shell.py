"""The shell of a page: what is kept from block to block, what fails it, and that no process of it remains."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents.pages import PageFault, Step
from tests.documents.shell import PageShell


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[PageShell]:
    folders = tmp_path / "folder", tmp_path / "notes"
    for folder in folders:
        folder.mkdir()
    with PageShell(*folders, {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}, 20) as opened:
        yield opened


def test_variables_and_folder_are_kept_for_the_next_block(shell: PageShell) -> None:
    shell.run(Step("p:1", "WORD=hello; mkdir sub; cd sub"))
    assert shell.run(Step("p:2", "echo $WORD", "hello")) == "hello\n"
    assert shell.run(Step("p:3", "basename $PWD", "sub")) == "sub\n"


@pytest.mark.parametrize("commands", ["false\ntrue", "false | true", "exit 0", "nothing-like-it"])
def test_a_command_that_fails_fails_the_page(shell: PageShell, commands: str) -> None:
    with pytest.raises(PageFault, match="p:1: a command failed"):
        shell.run(Step("p:1", commands))


def test_output_other_than_shown_fails_the_page(shell: PageShell) -> None:
    with pytest.raises(PageFault, match="shown is"):
        shell.run(Step("p:1", "echo a", "b"))


def test_command_that_does_not_end_fails_the_page(tmp_path: Path) -> None:
    with (
        PageShell(tmp_path, tmp_path, {"PATH": os.environ["PATH"]}, 0.2) as shell,
        pytest.raises(PageFault, match="is not done after"),
    ):
        shell.run(Step("p:1", "cat <(sleep 60)"))


def test_a_terminal_stays_open_until_it_is_used_again(shell: PageShell, tmp_path: Path) -> None:
    stays = "trap exit INT\necho $$ >../pid\necho ready\nwhile :; do read -t 1 <> <(:) || :; done"
    shell.run(Step("p:1", stays, None, "one", "^ready"))
    first = int((tmp_path / "pid").read_text())
    os.kill(first, 0)
    shell.run(Step("p:2", stays, None, "one", "^ready"))
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_a_terminal_that_never_prints_the_expected_text_fails_the_page(shell: PageShell) -> None:
    with pytest.raises(PageFault, match="never printed ready"):
        shell.run(Step("p:1", "echo no", None, "one", "ready"))


def test_variables_of_the_test_process_are_not_passed_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PASSERELLE_PORT", "1")
    with PageShell(tmp_path, tmp_path, {"PATH": os.environ["PATH"]}, 20) as shell:
        shell.run(Step("p:1", "echo ${PASSERELLE_PORT:-none}", "none"))


def test_a_failed_command_is_reported_at_once_while_terminals_are_open(shell: PageShell) -> None:
    """A process of a terminal had kept the pipe open whose end signals the end of the shell."""
    shell.run(Step("p:1", "echo ready; sleep 60", None, "a", "ready"))
    begun = time.monotonic()
    with pytest.raises(PageFault, match="p:2: a command failed"):
        shell.run(Step("p:2", "false"))
    assert time.monotonic() - begun < 10


def test_a_file_that_a_page_saves_exists(shell: PageShell) -> None:
    shell.run(Step("p:1", "print('hello')\n", file="said.py"))
    assert shell.run(Step("p:2", "cat said.py")) == "print('hello')\n"
