"""Separate environments of foreign packages, installed from a hashed lock and again when the lock changes.

``python -m tests.interop.environments`` installs the missing ones. A package that does not install is an error.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
JAVASCRIPT: Final = HERE / "javascript"
PYTHON_0_3: Final = HERE / "python_0_3"
ADK: Final = HERE / "adk"
"""A google-adk agent."""
FASTA2A: Final = HERE / "fasta2a"
"""A Pydantic AI agent behind fasta2a, which implements A2A without its SDK."""
LANGGRAPH: Final = HERE / "langgraph"
"""A LangGraph graph behind the a2a-sdk."""
S3: Final = HERE / "s3"
"""An S3 server."""
COMPOSE: Final = HERE / "compose"
"""A program that reads compose files."""
_OLDEST_NODE: Final = 20
_WITHIN_S: Final = 300


class NotPrepared(Exception):
    """An environment is missing, or cannot be installed; the text states the remedy."""


def find_node() -> str:
    """The command of a sufficiently new Node.

    Raises:
        NotPrepared: there is none.
    """
    node = shutil.which("node")
    if node is None:
        raise NotPrepared("node is not on PATH: install Node 20 or newer")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.strip().lstrip("v").partition(".")[0]) < _OLDEST_NODE:
        raise NotPrepared(f"node is {version.strip()}: install Node 20 or newer")
    return node


def prepare() -> None:
    """Installs the missing environments.

    Raises:
        NotPrepared: one cannot be installed; the text ends with the installer's output.
    """
    find_node()
    if not _is_ready(JAVASCRIPT):
        _run(JAVASCRIPT, "npm", "ci", "--ignore-scripts")
        _mark(JAVASCRIPT)
    for home in (PYTHON_0_3, ADK, FASTA2A, LANGGRAPH, S3, COMPOSE):
        if not _is_ready(home):
            _run(home, sys.executable, "-m", "venv", "--clear", ".venv")
            pip = str(home / ".venv/bin/pip")
            quiet = (
                "install",
                "-q",
                "--disable-pip-version-check",
                "--no-deps",
                "--require-hashes",
            )
            _run(home, pip, *quiet, "-r", "requirements.lock")
            _mark(home)


def require(*homes: Path) -> None:
    """Checks that the environments of ``homes`` exist.

    Raises:
        NotPrepared: one is missing.
    """
    if JAVASCRIPT in homes:
        find_node()
    for home in homes:
        if not _is_ready(home):
            raise NotPrepared(f"the environment of {home.name} is missing: run make interop")


def _lock_of(home: Path) -> Path:
    return home / ("package-lock.json" if home == JAVASCRIPT else "requirements.lock")


def _stamp_of(home: Path) -> Path:
    return home / ("node_modules" if home == JAVASCRIPT else ".venv") / "made-from"


def _digest(home: Path) -> str:
    return hashlib.sha256(_lock_of(home).read_bytes()).hexdigest()


def _is_ready(home: Path) -> bool:
    stamp = _stamp_of(home)
    return stamp.exists() and stamp.read_text() == _digest(home)


def _mark(home: Path) -> None:
    _stamp_of(home).write_text(_digest(home))


def _run(home: Path, *command: str) -> None:
    done = subprocess.run(
        command, cwd=home, capture_output=True, text=True, timeout=_WITHIN_S, check=False
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-800:]
        raise NotPrepared(f"{home.name}: {' '.join(command[:3])} failed: {said}")


if __name__ == "__main__":
    try:
        prepare()
    except NotPrepared as fault:
        sys.exit(f"interop: {fault}")
    sys.stdout.write("interop: the environments are there\n")
