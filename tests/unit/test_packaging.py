"""The package that users install contains all files of the tree.

The packages are folders at the top of the repository, reached through links. A checkout that lost its links
still builds, into an empty package whose installation reports success, so only an installed wheel can tell.
"""

import sys
import sysconfig
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.client_package import run_outside

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = (
    "a2a_mapping",
    "agent_cards",
    "channels",
    "cli",
    "client",
    "control",
    "core",
    "delegation",
    "demo",
    "gateway",
    "peers",
    "permission_bridge",
    "protocol",
    "runtime",
    "store",
    "webhooks",
)
ELSEWHERE = {"client": "clients/python/passerelle_client"}
"""Packages whose folder is not at the top."""
ORIGINS = ("tree", "sdist")
BUILD_WITHIN_S = 300
# Two wheels are built and installed before the first test: many programs, each of which may have to wait for others.
pytestmark = pytest.mark.timeout(4 * BUILD_WITHIN_S)

# Runs inside the clean environment: everything is read from where the package was installed.
PROBE = """
import importlib, pkgutil, sys
from importlib.resources import files
import passerelle

assert passerelle.__file__.startswith(sys.prefix), passerelle.__file__
found = {m.name for m in pkgutil.walk_packages(passerelle.__path__, "passerelle.") if m.ispkg}
for name in sorted(found):
    importlib.import_module(name)
print(*sorted(found))
assert files("passerelle.store").joinpath("lua/append.lua").read_text("utf-8").startswith("#!lua")
assert files("passerelle.agent_cards").joinpath("gateway.json").read_text("utf-8").startswith("{")
assert files("passerelle").joinpath("py.typed").is_file()
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """A wheel, and an environment whose only own package is that wheel."""

    wheel: Path
    environment: Path

    def run(self, program: str, *arguments: str) -> str:
        return run_outside(
            str(self.environment / "bin" / program), *arguments, cwd=self.environment
        )


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One wheel built from the tree, one from the source distribution of the tree."""
    folder = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir")
    run_outside(*build, str(folder / "tree"), "--wheel", str(ROOT), cwd=folder)
    run_outside(*build, str(folder / "sdist"), str(ROOT), cwd=folder)
    return {origin: next((folder / origin).glob("*.whl")) for origin in ORIGINS}


@pytest.fixture(scope="module", params=ORIGINS)
def installed(
    request: pytest.FixtureRequest,
    wheels: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Installed:
    """Installs without the network: the libraries are lent by the environment that runs the tests.

    They are lent as a plain path, whose own ``.pth`` files Python does not read, so that the editable
    install of the tree cannot stand in for a wheel that lacks something.
    """
    wheel = wheels[str(request.param)]
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=True)
    pip = (str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet")
    run_outside(
        *pip, "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel), cwd=environment
    )
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return Installed(wheel, environment)


def test_installed_wheel_has_every_package_scripts_and_cards(installed: Installed) -> None:
    found = installed.run("python", "-c", PROBE).split()
    assert {f"passerelle.{name}" for name in PACKAGES} <= set(found)


def test_installed_command_shows_the_version_of_the_project(installed: Installed) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert installed.run("passerelle", "--version").split()[-1] == project["version"]


def test_wheel_claims_no_name_but_its_own(installed: Installed) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(installed.wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"passerelle"}


def test_wheel_is_the_same_from_tree_and_from_source_distribution(wheels: dict[str, Path]) -> None:
    tree, sdist = (
        {entry.filename: entry.CRC for entry in zipfile.ZipFile(wheels[origin]).infolist()}
        for origin in ORIGINS
    )
    assert tree == sdist


def test_every_package_is_a_link_to_its_folder() -> None:
    links = {
        path.name: path for path in (ROOT / "src" / "passerelle").iterdir() if path.is_symlink()
    }
    assert tuple(sorted(links)) == PACKAGES
    assert {name: str(path.readlink()) for name, path in links.items()} == {
        name: f"../../{ELSEWHERE.get(name, name)}" for name in PACKAGES
    }


def test_pyright_is_shown_every_package() -> None:
    """It does not follow a link below an included folder, and does not report it."""
    included = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pyright"][
        "include"
    ]
    assert {f"src/passerelle/{name}" for name in PACKAGES} <= set(included)
