"""The package of ``passerelle-client`` as its wheel has it, for programs that import it by that name."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = ROOT / "clients" / "python"
TREE: Final = ROOT / "src" / "passerelle"


def load_build_hook() -> ModuleType:
    """What hatchling runs when the client is built."""
    spec = spec_from_file_location("hatch_build", PROJECT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_client(folder: Path) -> None:
    """Puts ``passerelle_client`` into a folder, beside the program that imports it."""
    hook = load_build_hook()
    hook.write_package(TREE, folder / hook.NAME)
