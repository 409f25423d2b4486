"""A wheel has the same bytes in every environment, so a published one can be compared with the tree."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.client_package import PROJECT

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD_WITHIN_S: Final = 300
pytestmark = pytest.mark.timeout(2 * BUILD_WITHIN_S)


def copy_tree(folder: Path) -> Path:
    """What git knows of the tree, as it is now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607 - git of PATH
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def build(source: Path, folder: Path, **environ: str) -> dict[str, str]:
    """The SHA-256 of each distribution that is built from ``source``, by its name."""
    command = (
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(source),
    )
    kept = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    done = subprocess.run(
        command,
        cwd=folder.parent,
        env={**kept, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_WITHIN_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("project", [".", str(PROJECT.relative_to(ROOT))])
def test_two_builds_of_the_same_tree_are_the_same_bytes(project: str, tmp_path: Path) -> None:
    # Another folder, other file times, another umask, zone and language: none of them changes the bytes.
    first = copy_tree(tmp_path / "here")
    second = copy_tree(tmp_path / "elsewhere" / "with a space")
    for path in second.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (1_000_000_000, 1_000_000_000))
            path.chmod(path.stat().st_mode & 0o755 if path.is_dir() else 0o600)
    one = build(first / project, tmp_path / "one", TZ="UTC", PYTHONHASHSEED="1")
    two = build(second / project, tmp_path / "two", TZ="Asia/Tokyo", PYTHONHASHSEED="2", LC_ALL="C")
    assert len(one) == 2
    assert one == two
