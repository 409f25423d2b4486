"""``python -m tests.documents [PAGE …]``: runs README and the first tutorial, or other pages, as they are written.

Each page gets a clean copy of the tree and an empty HOME, and no variable except those of the network. Only the page
installs packages, in the versions of the lock. Pages that continue the same page share its installation and nothing
else: its other commands run before each of them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.documents.pages import (
    INSTALLED,
    PageFault,
    Step,
    find_before,
    leave_out_installing,
    read_page,
)
from tests.documents.shell import PageShell

ROOT: Final = Path(__file__).resolve().parent.parent.parent
PAGES: Final = ("README.md", "docs/tutorials/first-agent.md")
_PASSED_ON: Final = re.compile(r"PIP_\w+|UV_\w+|\w+_proxy|\w+_PROXY|SSL_CERT_\w+|REQUESTS_\w+|LANG")
_PORTS: Final = (6390, 8000, 8080, 8081, 9000, 9001, 9002)
"""Ports of the pages."""


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.documents")
    parser.add_argument("pages", nargs="*", default=PAGES, metavar="PAGE")
    pages = [str(page) for page in parser.parse_args().pages]
    begun = time.monotonic()
    try:
        # An untestable block is reported before anything is installed.
        read = {page: read_page(ROOT, page) for page in pages}
        groups: dict[str | None, list[str]] = {}
        for page in pages:
            groups.setdefault(find_before(ROOT, page), []).append(page)
        _refuse_taken_ports()
        for before, after in groups.items():
            if before is None:
                for page in after:
                    _play([read[page]])
            else:
                begin = read_page(ROOT, before)
                again = [leave_out_installing(step) for step in begin]
                _play([(again if at else begin) + read[page] for at, page in enumerate(after)])
        steps = sum(len(found) for found in read.values())
    except PageFault as fault:
        print(f"docs-test: failed: {fault}", file=sys.stderr)
        return 1
    print(f"docs-test: {steps} steps of {len(pages)} pages in {time.monotonic() - begun:.0f} s")
    return 0


def _play(pages: list[list[Step]]) -> None:
    """Runs pages one after the other; they share the installation of the first one."""
    with tempfile.TemporaryDirectory(prefix="passerelle-docs-") as made:
        folder = Path(made)
        tree = folder / "tree"
        for steps in pages:
            _clear(folder)
            _copy_tree(tree)
            with PageShell(tree, folder / "notes", _make_environ(folder)) as shell:
                for step in steps:
                    begun = time.monotonic()
                    shell.run(step)
                    first = step.file or step.commands.strip().splitlines()[0]
                    print(f"{step.where}: {time.monotonic() - begun:.1f} s  {first}", flush=True)


def _clear(folder: Path) -> None:
    """Empties tree, HOME and notes, but keeps the installation."""
    for name in ("tree", "home", "notes"):
        (folder / name).mkdir(exist_ok=True)
        for found in (folder / name).iterdir():
            if found.name == INSTALLED:
                continue
            if found.is_dir() and not found.is_symlink():
                shutil.rmtree(found)
            else:
                found.unlink()


def _copy_tree(target: Path) -> None:
    """The tracked files in their current state; without ``.venv``, caches and build output."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)


def _make_environ(folder: Path) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
    versions = folder / "versions"
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    versions.write_text("\n".join(re.findall(r"^\S+==[^\\\n]*", lock, re.MULTILINE)), "utf-8")
    cache = os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip"))
    own = Path.home() / ".config" / "pip" / "pip.conf"
    if own.is_file():
        environ.setdefault("PIP_CONFIG_FILE", str(own))
    return {
        **environ,
        "HOME": str(folder / "home"),
        "PATH": f"{Path(sys.base_prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "PIP_CACHE_DIR": cache,
        "PIP_CONSTRAINT": str(versions),
        "COLUMNS": "80",
    }


def _refuse_taken_ports() -> None:
    for port in _PORTS:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                raise PageFault(f"port {port}, which the pages use, is taken") from None


if __name__ == "__main__":
    sys.exit(main())
