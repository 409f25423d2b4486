"""``python -m tools.image_smoke FILE``: plays an image of this machine's architecture without a daemon.

As the user of the image and without any right of root: scene (a) of the demo, in which an A2A SDK client is answered
by an agent behind the gateway; then what the image runs by itself, until ``passerelle health`` in it says that it
takes work. Nothing of the image may be that user's to write but folders for data and passing files: so its root may be
read-only.
"""

from __future__ import annotations

import argparse
import json
import stat
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from tools.image import USER, ImageFault, run_buildah, write_policy

MOST_BYTES: Final = 180_000_000
WRITABLE: Final = frozenset({"tmp", "var/tmp", "run/lock", "var/lock", "var/lib/passerelle"})
"""Folders that are the user's, or everybody's."""
_CONTAINER: Final = "smoke"
_ENTRY: Final[Mapping[str, object]] = {
    "User": f"{USER}:{USER}",
    "Entrypoint": ["passerelle"],
    "Cmd": ["serve"],
    "WorkingDir": "/etc/passerelle",
    "Volumes": {"/var/lib/passerelle": {}},
}
_SCENE: Final = """
import asyncio, pathlib, tempfile
from passerelle.demo import answers
from passerelle.demo.checks import Checks
from passerelle.demo.stage import set_stage
async def play():
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        async with set_stage(pathlib.Path(folder), checks) as stage:
            await answers.play(stage)
    print(f"scene (a): {checks.passed} checks passed")
asyncio.run(play())
"""
_SERVE: Final = """
import os, socket, subprocess, time
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    os.environ["PASSERELLE_PORT"] = str(free.getsockname()[1])
started = time.monotonic()
with subprocess.Popen(["passerelle", "serve"]) as gateway:
    try:
        while subprocess.run(["passerelle", "health"], stderr=subprocess.DEVNULL).returncode:
            assert gateway.poll() is None, "it ended by itself"
            assert time.monotonic() < started + 90, "it is not ready within 90 s"
    finally:
        gateway.terminate()
        ended = gateway.wait(20)
print(f"exit status {ended}, uid {os.getuid()}")
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.image_smoke", description=__doc__)
    parser.add_argument("file", type=Path)
    file: Path = parser.parse_args(arguments).file
    with tempfile.TemporaryDirectory(prefix="passerelle-smoke-") as name:
        try:
            size = file.stat().st_size
            if size > MOST_BYTES:
                raise ImageFault(f"{file} has {size} bytes, and may have {MOST_BYTES}")
            last = play(file, Path(name))
        except (ImageFault, OSError) as fault:
            print(f"image: {fault}", file=sys.stderr)
            return 1
    print(f"image: {size / 1_000_000:.0f} MB, uid {USER}, {last}")
    return 0


def play(file: Path, folder: Path) -> str:
    """The last line of the scene.

    Raises:
        ImageFault: something is not as it should be.
    """
    policy = f"--signature-policy={write_policy(folder)}"
    kind = "oci-archive" if _is_oci(file) else "docker-archive"
    run_buildah(folder, "from", "--quiet", f"--name={_CONTAINER}", policy, f"{kind}:{file}")
    check_entry(json.loads(run_buildah(folder, "inspect", _CONTAINER)))
    said = run_inside(folder, "python3", "-c", _SCENE).splitlines()
    served = run_inside(folder, "python3", "-c", _SERVE).splitlines()
    if served[-1] != f"exit status 0, uid {USER}":
        raise ImageFault(f"passerelle serve: {served[-1]}")
    root = Path(run_buildah(folder, "mount", _CONTAINER).strip())
    if wrong := sorted(find_writable(root)):
        raise ImageFault(f"the user may write {', '.join(wrong[:5])}")
    return said[-1]


def run_inside(folder: Path, *command: str) -> str:
    """What a program of the image prints, run as its user."""
    return run_buildah(folder, "run", "--isolation=chroot", _CONTAINER, "--", *command)


def check_entry(inspected: dict[str, Any]) -> None:
    """What the image says of itself. Raises ImageFault."""
    config = cast("dict[str, object]", inspected["OCIv1"]["config"])
    for name, wanted in _ENTRY.items():
        if config.get(name) != wanted:
            raise ImageFault(f"{name} is {config.get(name)!r} and not {wanted!r}")


def find_writable(root: Path) -> Iterator[str]:
    """Paths outside of ``WRITABLE`` that are the user's or everybody's to write, and programs that change the user."""
    waiting = [root]
    while waiting:
        for path in waiting.pop().iterdir():
            name, told = f"{path.relative_to(root)}", path.lstat()
            if name in WRITABLE or stat.S_ISLNK(told.st_mode):
                continue
            changes_user = told.st_mode & (stat.S_ISUID | stat.S_ISGID) and path.is_file()
            if USER in {told.st_uid, told.st_gid} or told.st_mode & stat.S_IWOTH or changes_user:
                yield name
            elif stat.S_ISDIR(told.st_mode):
                waiting.append(path)


def _is_oci(file: Path) -> bool:
    """Whether the archive is a layout of OCI, and not one of docker."""
    with tarfile.open(file) as archive:
        return "oci-layout" in archive.getnames()


if __name__ == "__main__":
    sys.exit(main())
