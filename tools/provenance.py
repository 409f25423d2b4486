"""``python -m tools.provenance FOLDER``: where the files of a release come from, as ``provenance.intoto.json`` in it.

A statement of in-toto with the predicate of SLSA provenance v1: the SHA-256 of each file, the commit, the lock, and
what makes them. It has no times and is not signed: the same tree and files give the same bytes, so that anybody can
rebuild it and compare. Publishers sign it with their own identity. ``--check`` compares.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.sbom import ROOT

if TYPE_CHECKING:
    from passerelle.core.wire.json import JsonObject

NAME: Final = "provenance.intoto.json"
_TYPE: Final = "https://in-toto.io/Statement/v1"
_PREDICATE: Final = "https://slsa.dev/provenance/v1"
_BUILD: Final = "urn:passerelle:ci:package:v1"
"""The stage ``package`` of ``.ci/run``: what its lines do is in the tree that the commit names."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 1 where a file is not what the statement says."""
    parser = argparse.ArgumentParser(prog="python -m tools.provenance", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true", help="compare the files with the statement")
    said = parser.parse_args(arguments)
    file: Path = said.folder / NAME
    if said.check:
        faults = compare(json.loads(file.read_text("utf-8")), said.folder)
        for fault in faults:
            print(f"provenance: {fault}", file=sys.stderr)
        return 1 if faults else 0
    statement = make_statement(said.folder, *read_source(ROOT))
    file.write_text(f"{json.dumps(statement, indent=2)}\n", "utf-8")
    print(f"provenance: {len(digest_files(said.folder))} files")
    return 0


def digest_files(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file of a release, by its name."""
    files = sorted(one for one in folder.iterdir() if one.is_file() and one.name != NAME)
    return {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in files}


def read_source(tree: Path) -> tuple[str, bool]:
    """The commit of a tree, and whether the tree has what no commit has.

    Raises:
        CalledProcessError: this is no checkout.
    """
    commit = _ask_git(tree, "rev-parse", "HEAD")
    return commit, bool(_ask_git(tree, "status", "--porcelain", "--untracked-files=no"))


def make_statement(folder: Path, commit: str, is_modified: bool) -> JsonObject:  # noqa: FBT001 - one of two facts of a tree
    """The statement about the files of a folder. A tree with changes of its own is said to have them."""
    lock = hashlib.sha256((ROOT / "requirements.lock").read_bytes()).hexdigest()
    return {
        "_type": _TYPE,
        "subject": [
            {"name": name, "digest": {"sha256": digest}}
            for name, digest in digest_files(folder).items()
        ],
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD,
                "externalParameters": {"commit": commit, "modified": is_modified},
                "internalParameters": {"python": platform.python_version()},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit}},
                    {"name": "requirements.lock", "digest": {"sha256": lock}},
                ],
            },
            "runDetails": {"builder": {"id": _BUILD}},
        },
    }


def compare(statement: Mapping[str, Any], folder: Path) -> list[str]:
    """A sentence for each file that is another one, is missing, or is not in the statement.

    Raises:
        KeyError: this is no statement about files.
    """
    told: dict[str, str] = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    found = digest_files(folder)
    faults = [f"{name} is not here" for name in told if name not in found]
    faults += [f"{name} is not in the statement" for name in found if name not in told]
    faults += [
        f"{name} has other bytes" for name in found if told.get(name, found[name]) != found[name]
    ]
    return sorted(faults)


def _ask_git(tree: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words],  # noqa: S607 - git of PATH
        cwd=tree,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
