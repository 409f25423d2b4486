"""``python -m tools.links``: relative links in Markdown lead to a file, and to a heading of it.

Addresses on the network are not asked: a check must not depend on it.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(
    r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE
)
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def main() -> int:
    """Returns the exit status: 0 when every link leads somewhere."""
    documents = list(_documents())
    faults = [fault for path in documents for fault in check(path, ROOT)]
    for fault in faults:
        print(f"links: {fault}", file=sys.stderr)
    print(f"links: {len(documents)} documents, {len(faults)} faults")
    return 1 if faults else 0


def check(document: Path, root: Path) -> Iterator[str]:
    """A sentence for every relative link of one document that leads nowhere."""
    text = document.read_text("utf-8")
    name = document.relative_to(root)
    for found in _LINK.finditer(_CODE.sub("", _FENCE.sub("", text))):
        target: str = found.group(1) or found.group(2)
        if _SCHEME.match(target):
            continue
        path, _, anchor = unquote(target).partition("#")
        goal = (document.parent / path).resolve() if path else document
        if not goal.exists() or not goal.is_relative_to(root):
            yield f"{name}: {target} leads to no file"
        elif anchor and goal.suffix == ".md" and anchor not in anchors(goal.read_text("utf-8")):
            yield f"{name}: {target} leads to no heading"


def anchors(text: str) -> set[str]:
    """The names under which the headings of a document can be linked to."""
    names: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        words = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        repeat = next(
            n for n in range(len(names) + 1) if (f"{words}-{n}" if n else words) not in names
        )
        names.add(f"{words}-{repeat}" if repeat else words)
    return names


def _documents() -> Iterator[Path]:
    """Markdown files that belong to the project: what git tracks or would track."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],  # noqa: S607 - git of PATH
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    yield from (
        ROOT / line for line in sorted(set(listing.stdout.splitlines())) if (ROOT / line).is_file()
    )


if __name__ == "__main__":
    sys.exit(main())
