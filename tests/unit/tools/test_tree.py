"""The files of the repository: its links lead to files in it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
_LINK: Final = "120000"


def test_links_lead_to_what_is_in_the_tree() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--stage"],  # noqa: S607 - git of PATH
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    links = [ROOT / line.partition("\t")[2] for line in listed if line.startswith(_LINK)]
    assert links, "the package is links to its rooms"
    for link in links:
        assert not link.readlink().is_absolute(), link
        assert link.resolve(strict=True).is_relative_to(ROOT), link
