"""``python -m tools.site``: the documents as a site with search, in ``build/site``; a link that leads nowhere fails.

Every document of the tree has its page, at the path that it has in the tree. A link to code is shown as its text: a
site has no code to lead to.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from tools.links import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

TARGET: Final = ROOT / "build" / "site"
SHOWN: Final = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
FOLDERS: Final = ("docs", "clients")
_LINK: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
_SCHEME: Final = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_CONFIGURATION: Final = """
[project]
site_name = "Passerelle"
site_description = "A gateway in front of agents that speak A2A"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = [
  {"Start" = "index.md"},
  {"Tutorials" = "docs/tutorials/index.md"},
  {"How-to guides" = "docs/how-to/index.md"},
  {"Reference" = "docs/reference/index.md"},
  {"Explanation" = "docs/explanation/index.md"},
  {"Operation" = "docs/operate/index.md"},
  {"Glossary" = "docs/glossary.md"},
  {"Decisions" = "docs/decisions/index.md"},
  {"Changelog" = "CHANGELOG.md"},
]

[project.theme]
features = ["navigation.indexes", "navigation.top", "content.code.copy", "search.highlight"]

[project.markdown_extensions.toc]
permalink = true

[project.markdown_extensions.tables]

[project.markdown_extensions.pymdownx.superfences]
custom_fences = [{name = "mermaid", class = "mermaid", format = "pymdownx.superfences.fence_code_format"}]
"""


def main() -> int:
    """The exit status."""
    begun = time.monotonic()
    pages = list_pages(ROOT)
    with tempfile.TemporaryDirectory(prefix="passerelle-site-") as made:
        folder = Path(made)
        for page in pages:
            target = folder / "pages" / name_page(page)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(render_page(ROOT, page, pages), "utf-8")
        (folder / "zensical.toml").write_text(_CONFIGURATION, "utf-8")
        program = Path(sys.executable).parent / "zensical"
        done = subprocess.run([program, "build", "--strict", "--clean"], cwd=folder, check=False)
        if done.returncode:
            print("docs: failed", file=sys.stderr)
            return 1
        shutil.rmtree(TARGET, ignore_errors=True)
        shutil.copytree(folder / "site", TARGET)
    print(
        f"docs: {len(pages)} pages in {time.monotonic() - begun:.0f} s, {TARGET.relative_to(ROOT)}/index.html"
    )
    return 0


def list_pages(root: Path) -> frozenset[Path]:
    """The documents that have a page, by their paths below ``root``."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],  # noqa: S607 - git of PATH
        cwd=root,
        capture_output=True,
        check=True,
        text=True,
    )
    found = map(Path, listed.stdout.splitlines())
    return frozenset(
        path
        for path in found
        if (root / path).is_file() and (str(path) in SHOWN or path.parts[0] in FOLDERS)
    )


def name_page(document: Path) -> Path:
    """Where a document stands in the site; the README of a folder is what one sees there first."""
    return document.with_name("index.md") if document.name == "README.md" else document


def render_page(root: Path, document: Path, pages: Iterable[Path]) -> str:
    """The text of a page, with its links as they lead in the site. What fences and code show stays as it is."""
    text = (root / document).read_text("utf-8")
    known = frozenset(pages)

    def lead(found: re.Match[str]) -> str:
        return _lead(document, found, known)

    # Fences are every second piece; code in a line may stand in the words of a link, and has no link in it.
    pieces = _FENCE.split(text)
    return "".join(
        piece if number % 2 else _LINK.sub(lead, piece) for number, piece in enumerate(pieces)
    )


def _lead(document: Path, found: re.Match[str], known: frozenset[Path]) -> str:
    words, target = found[1], found[2]
    if _SCHEME.match(target) or target.startswith("#"):
        return found[0]
    path, hash_mark, anchor = unquote(target).partition("#")
    goal = Path(posixpath.normpath(document.parent / path))
    if goal not in known and goal.suffix != ".md":
        return words
    away = posixpath.relpath(name_page(goal), name_page(document).parent)
    return f"[{words}]({away}{hash_mark}{anchor})"


if __name__ == "__main__":
    sys.exit(main())
