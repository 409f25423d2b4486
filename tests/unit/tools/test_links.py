"""A link in a document that leads nowhere is found."""

from pathlib import Path

import pytest

from tools.links import anchors, check


def write(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "[it](page.md)",
        "[it](page.md#a-heading)\n\n## A heading\n",
        "[it](#a-heading)\n\n## `A` heading!\n",
        "[it](https://example.org/nowhere)",
        "`[it](nowhere.md)`",
        "```md\n[it](nowhere.md)\n```\n",
    ],
)
def test_link_that_leads_somewhere_is_left_alone(tmp_path: Path, text: str) -> None:
    assert list(check(write(tmp_path, text), tmp_path)) == []


@pytest.mark.parametrize(
    "text",
    [
        "[it](nowhere.md)",
        "![it](nowhere.png)",
        "[it]: nowhere.md",
        "[it](page.md#no-heading)",
        "[it](../outside.md)",
    ],
)
def test_link_that_leads_nowhere_is_named(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "top"
    folder.mkdir()
    (tmp_path / "outside.md").touch()
    (fault,) = check(write(folder, text), folder)
    assert fault.startswith("page.md: ")


def test_repeated_headings_are_numbered() -> None:
    assert anchors("# Same\n## Same\n### Same\n") == {"same", "same-1", "same-2"}
