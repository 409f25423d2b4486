"""The installed client works alone, and next to the gateway."""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.client_package import (
    PROJECT,
    ROOT,
    TREE,
    build_client,
    install_client,
    load_build_hook,
    run_outside,
)

# Wheels are built and installed before the first test: many programs, each of which may have to wait for others.
pytestmark = pytest.mark.timeout(900)

WITHOUT_EXTRA: Final = ("channel", "agent")
WITH_EXTRAS: Final = ("a2a_websocket", "api", "tasks")
STANDS_ALONE: Final = """
import sys
before = set(sys.modules)
import passerelle_client.channel, passerelle_client.agent
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))
"""
STANDS_BESIDE: Final = """
from passerelle.channels.hub import Hub
from passerelle.client.channel import Event as InTree
from passerelle.protocol.cursor import Cursor as Served
from passerelle_client.channel import Event
from passerelle_client.protocol.cursor import Cursor
print(Event is InTree, Cursor is Served, Hub.__module__)
"""


def read_project(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))[
        "project"
    ]
    return project


def read_wheel(wheel: Path) -> dict[str, int]:
    return {entry.filename: entry.CRC for entry in zipfile.ZipFile(wheel).infolist()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_client(tmp_path_factory.mktemp("tree"))


def test_installed_alone_it_needs_two_libraries_and_no_gateway(wheel: Path, tmp_path: Path) -> None:
    python = install_client(wheel, tmp_path / "environment")
    said = run_outside(str(python), "-c", STANDS_ALONE, cwd=tmp_path)
    assert said.split() == ["orjson", "passerelle_client", "websockets"]


def test_client_and_gateway_in_one_environment_have_separate_classes(
    wheel: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path)
    said = run_outside(sys.executable, "-c", STANDS_BESIDE, cwd=tmp_path)
    assert said.split() == ["False", "False", "passerelle.channels.hub"]


@pytest.mark.parametrize("name", [*WITHOUT_EXTRA, *WITH_EXTRAS])
def test_every_stable_module_of_the_wheel_imports_without_the_tree(
    wheel: Path, tmp_path: Path, name: str
) -> None:
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tmp_path)
    told = f"import sys, passerelle_client.{name}; print('passerelle' in sys.modules)"
    assert run_outside(sys.executable, "-c", told, cwd=tmp_path).strip() == "False"


def test_wheel_claims_no_name_but_its_own(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in read_wheel(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"passerelle_client"}


def test_wheel_is_the_same_from_tree_and_from_source_distribution(
    wheel: Path, tmp_path: Path
) -> None:
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path))
    run_outside(*build, str(PROJECT), cwd=tmp_path)
    assert read_wheel(next(tmp_path.glob("*.whl"))) == read_wheel(wheel)


def test_wheel_ships_what_clients_import_and_nothing_else_of_the_gateway() -> None:
    """A new name here is a room of the gateway that every client installs: cut the import, or give the reason."""
    rooms: dict[str, set[str]] = {}
    for name in load_build_hook().find_modules(TREE):
        _, room, *rest = name.split(".")
        rooms.setdefault(room, set()).add(".".join(rest))
    assert set(rooms) == {"client", "protocol", "core", "store"}
    assert rooms["core"] == {
        *("", "back_off", "chunks", "errors", "frozen", "ids", "vocabulary"),
        *("wire", "wire.generated", "wire.json", "wire.sse"),
    }
    assert not rooms["store"] & {"keys", "log", "append", "scripts", "store", "engine"}


def test_imports_are_renamed_and_lines_stay() -> None:
    text = '"""passerelle.client"""\nfrom passerelle.client.items import (\n    Event,\n)\n'
    text += "from passerelle.clientele import x\nfrom passerelle.core.wire.json import Json\n"
    assert load_build_hook().rename_imports(text) == (
        '"""passerelle.client"""\nfrom passerelle_client.items import (\n    Event,\n)\n'
        "from passerelle_client.clientele import x\nfrom passerelle_client.core.wire.json import Json\n"
    )


def test_version_and_licence_are_those_of_the_gateway() -> None:
    client, gateway = read_project(PROJECT), read_project(ROOT)
    assert client["version"] == gateway["version"]
    assert client["license"] == gateway["license"]
    assert (PROJECT / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_requirements_are_those_of_the_gateway() -> None:
    assert list_requirements(PROJECT) <= list_requirements(ROOT)


def list_requirements(folder: Path) -> set[str]:
    """Names with their bounds, with all extras; what is asked of them with it is left out."""
    project = read_project(folder)
    asked = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        asked += extra
    return {re.sub(r"\[.*\]", "", requirement) for requirement in asked}
