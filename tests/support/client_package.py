"""The package ``passerelle-client`` as its wheel contains it, for programs that import it by that name."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = ROOT / "clients" / "python"
TREE: Final = ROOT / "src" / "passerelle"
LIBRARIES: Final = ("orjson", "websockets")
"""The wheel's requirements without an extra."""
API_LIBRARIES: Final = (
    "anyio",
    "certifi",
    "h11",
    "httpcore",
    "httpx",
    "idna",
    "typing_extensions.py",
)
"""The requirements with the extra ``api``, with their own dependencies."""


def load_build_hook() -> ModuleType:
    """The build hook that hatchling runs when it builds the client."""
    spec = spec_from_file_location("hatch_build", PROJECT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_client(folder: Path) -> None:
    """Writes ``passerelle_client`` into a folder, next to the program that imports it."""
    hook = load_build_hook()
    hook.write_package(TREE, folder / hook.NAME)


def build_client(folder: Path) -> Path:
    """Builds the wheel from the source tree, into ``folder``."""
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder))
    run_outside(*build, "--wheel", str(PROJECT), cwd=folder)
    return next(folder.glob("*.whl"))


def install_client(wheel: Path, folder: Path, libraries: tuple[str, ...] = LIBRARIES) -> Path:
    """An environment with the wheel and its requirements; the libraries come from the environment of the tests."""
    venv.create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(packages)
    for name in libraries:
        (packages / name).symlink_to(Path(sysconfig.get_path("platlib")) / name)
    return folder / "bin" / "python"


def run_outside(*command: str, cwd: Path) -> str:
    """Standard output of a program that must succeed, run outside the tree's import path."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV_"))}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, check=False, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout
