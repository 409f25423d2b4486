"""The steps that a page shows, and that a page which cannot be tested states so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents.__main__ import PAGES, ROOT
from tests.documents.pages import (
    PageFault,
    Step,
    find_before,
    leave_out_installing,
    matches,
    read_page,
    read_steps,
)


def fence(info: str, text: str) -> str:
    return f"# A page\n\n```{info}\n{text}\n```\n"


def test_blocks_are_steps_in_order_with_their_lines() -> None:
    page = (
        fence("bash", "true\nfalse")
        + fence("yaml", "port: 1")
        + fence('bash terminal=a until="^try: "', "passerelle serve")
        + fence("console", "$ echo a \\\n  b\na b\n$ true")
    )
    assert read_steps("p.md", page) == [
        Step("p.md:3", "true\nfalse\n"),
        Step("p.md:14", "passerelle serve\n", None, "a", "^try: "),
        Step("p.md:19", "echo a \\\n  b", "a b"),
        Step("p.md:19", "true", None),
    ]


@pytest.mark.parametrize(
    ("info", "text", "says"),
    [
        ("sh", "true", "is not run, and does not say why"),
        ("shell", "true", "shell is no language"),
        ("zsh because=x", "true", "zsh is no language"),
        ("bash terminal=a", "true", "given together"),
        ("bash skip=yes", "true", "skip is no option"),
        ("bash skip", "true", "is name=value"),
        ("bash because=slow", "true", "because is no option"),
        ("bash file=a.sh", "true", "file is no option"),
        ("yaml because=x", "a: 1", "because is no option"),
        ("console", "echo a", "begins with"),
    ],
)
def test_block_that_cannot_be_tested_is_refused(info: str, text: str, says: str) -> None:
    with pytest.raises(PageFault, match=says):
        read_steps("p.md", fence(info, text))


def test_a_block_may_be_left_out_with_a_reason() -> None:
    assert read_steps("p.md", fence('sh because="needs two machines"', "false")) == []


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("hello", "hello\n", True),
        ("hello", "hello\nand more\n", False),
        ("task_… completed", "task_2f  completed\n", True),
        ("task_… completed", "task_2f  failed\n", False),
        ("A\n…\nB", "A\nB\n", True),
        ("A\n…\nB", "A\n1\n2\nB\n", True),
        ("A\n…\nB", "A\n1\n2\n", False),
        ("TASK  …  STATUS", "TASK      X   STATUS", True),
        ("a.c", "abc", False),
    ],
)
def test_printed_output_is_compared_with_the_shown_one(
    shown: str, printed: str, *, same: bool
) -> None:
    assert matches(shown, printed) is same


@pytest.mark.parametrize("page", PAGES)
def test_pages_that_are_run_leave_no_command_out(page: str) -> None:
    assert "because=" not in (ROOT / page).read_text("utf-8")
    assert len(read_page(ROOT, page)) >= 8


def test_the_third_command_of_the_readme_has_the_first_answer() -> None:
    install, serve, call = read_page(ROOT, "README.md")[:3]
    assert install.commands.strip().endswith("pip install .")
    assert serve.commands.strip() == "passerelle serve --demo-agents"
    assert call.shown is not None
    assert call.shown.splitlines()[0] == "hello"


def test_block_with_a_file_is_what_the_reader_saves() -> None:
    page = fence("python file=phone.py", "print(1)") + fence("python", "print(2)")
    assert read_steps("p.md", page) == [Step("p.md:3", "print(1)\n", file="phone.py")]


def test_page_names_the_one_on_which_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "begin.md").write_text("# Begin", "utf-8")
    (tmp_path / "a" / "next.md").write_text("<!-- docs-test: after ../begin.md -->", "utf-8")
    assert find_before(tmp_path, "a/next.md") == "begin.md"
    assert find_before(tmp_path, "begin.md") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<!-- docs-test: after nowhere.md -->", "there is no page nowhere.md"),
        ("<!-- docs-test: after next.md -->", "next.md is no page to begin with"),
        ("<!-- docs-test: after a.md -->\n<!-- docs-test: after b.md -->", "more than one page"),
    ],
)
def test_page_that_goes_on_nowhere_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "page.md").write_text(text, "utf-8")
    (tmp_path / "next.md").write_text("<!-- docs-test: after page.md -->", "utf-8")
    with pytest.raises(PageFault, match=says):
        find_before(tmp_path, "page.md")


def list_pages(folder: str) -> list[str]:
    return sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "docs" / folder).glob("*.md")
        if path.name != "README.md"
    )


@pytest.mark.parametrize("page", [*list_pages("tutorials"), *list_pages("how-to")])
def test_every_page_with_commands_can_be_run(
    page: str,
) -> None:
    steps = read_page(ROOT, page)
    before = find_before(ROOT, page)
    assert before is None or (steps and read_page(ROOT, before))
    assert steps or "tutorials" not in page


def test_install_commands_are_left_out_when_a_page_is_repeated() -> None:
    begin = read_page(ROOT, "docs/how-to/before-you-begin.md")
    again = [leave_out_installing(step) for step in begin]
    assert "pip install" in begin[0].commands
    assert again[0].commands.split("\n") == [". .venv/bin/activate", ""]
    assert again[1:] == begin[1:]
