"""``python -m tools.lua``: every script has its header and compiles on the embedded engine.

A header says, in comments before the first statement, the purpose, KEYS, ARGV, the shared functions that it calls
(USES), what it returns and what it never does; ``#!lua`` stands on the first line, so that the engine holds the script
to its declared keys.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from passerelle.store.engine_binary import find_engine
from passerelle.store.scripts import compose_script, read_functions

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT / "store" / "lua", ROOT / "clients" / "python" / "passerelle_client" / "lua")
_SECTIONS = ("KEYS", "ARGV", "RETURNS", "NEVER")
_READY_WITHIN_S = 10.0
_POLL_S = 0.02


def main() -> int:
    """Returns the exit status: 0 when every script is sound."""
    scripts = sorted(path for folder in FOLDERS for path in folder.glob("*.lua"))
    faults = [
        fault for path in scripts for fault in check_header(path.name, path.read_text("utf-8"))
    ]
    faults += compile_scripts(scripts) if scripts else []
    for fault in faults:
        print(f"lua: {fault}", file=sys.stderr)
    print(f"lua: {len(scripts)} scripts, {len(faults)} faults")
    return 1 if faults else 0


def check_header(name: str, text: str) -> Iterator[str]:
    """A sentence for everything that the header of one script lacks."""
    first, _, rest = text.partition("\n")
    if not re.fullmatch(r"#!lua( flags=[a-z,-]+)?", first):
        yield f"{name}: the first line is #!lua, with flags where needed"
    header = re.match(r"(?:\s*--.*(?:\n|$)|\s*\n)*", rest)
    comments = header.group() if header else ""
    purpose = re.match(r"--[ \t]*(\w+)", comments)
    if purpose is None or purpose.group(1).upper() in _SECTIONS:
        yield f"{name}: no purpose in the line after #!lua"
    for section in _SECTIONS:
        if not re.search(rf"^\s*--\s*{section}\b", comments, re.MULTILINE | re.IGNORECASE):
            yield f"{name}: the header does not say {section}"
    yield from _check_uses(name, comments, rest[len(comments) :])


def _check_uses(name: str, comments: str, body: str) -> Iterator[str]:
    """The engine finds a missing function only when the call is reached."""
    found = re.search(r"^-- USES  (.+)$", comments, re.MULTILINE)
    uses = set(found[1].split() if found else ())
    called = read_functions().keys() & set(re.findall(r"\w+", body))
    for function in sorted(called - uses):
        yield f"{name}: calls {function}, and USES does not name it"
    for function in sorted(uses - called):
        yield f"{name}: USES names {function}, which is not called or not shared"


def compile_scripts(scripts: Sequence[Path]) -> list[str]:
    """A sentence for every script that the engine refuses to load."""
    faults: list[str] = []
    with _engine() as client:
        for path in scripts:
            try:
                client.script_load(compose_script(path.read_text("utf-8")))
            except redis.ResponseError as refusal:
                faults.append(f"{path.name}: {refusal}")
    return faults


@contextmanager
def _engine() -> Generator[redis.Redis]:
    """An engine without data on a unix socket, gone at the end; the first call waits until it is ready."""
    with tempfile.TemporaryDirectory(prefix="lua-") as folder:
        socket = Path(folder) / "engine.sock"
        command = [str(find_engine(None).path), "--port", "0", "--unixsocket", str(socket)]
        command += ["--save", "", "--dir", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as engine:
            try:
                tries = int(_READY_WITHIN_S / _POLL_S)
                retry = Retry(ConstantBackoff(_POLL_S), tries)
                with redis.Redis(unix_socket_path=str(socket), retry=retry) as client:
                    yield client
            finally:
                engine.terminate()


if __name__ == "__main__":
    sys.exit(main())
