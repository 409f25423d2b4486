"""What a release states about its files, and what an installation may take."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tools.provenance import NAME, compare, make_statement
from tools.sbom import ROOT
from tools.sizes import close_over, judge, main, measure
from tools.unused import ROOMS

COMMIT = "1" * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "passerelle-1.whl").write_bytes(b"wheel")
    (tmp_path / "passerelle.cdx.json").write_bytes(b"{}")
    return tmp_path


def test_a_statement_names_each_file_the_commit_and_the_lock(folder: Path) -> None:
    made: Any = make_statement(folder, COMMIT, is_modified=False)
    assert [one["name"] for one in made["subject"]] == ["passerelle-1.whl", "passerelle.cdx.json"]
    assert {len(one["digest"]["sha256"]) for one in made["subject"]} == {64}
    build = made["predicate"]["buildDefinition"]
    assert build["externalParameters"] == {"commit": COMMIT, "modified": False}
    assert build["resolvedDependencies"][0]["digest"] == {"gitCommit": COMMIT}
    assert set(made["predicate"]["runDetails"]["builder"]) == {"id"}
    (folder / NAME).write_text(json.dumps(made), "utf-8")
    assert make_statement(folder, COMMIT, is_modified=False) == made
    assert make_statement(folder, COMMIT, is_modified=True) != made


def test_a_file_that_is_another_one_is_found(folder: Path) -> None:
    made = make_statement(folder, COMMIT, is_modified=False)
    assert compare(made, folder) == []
    (folder / "passerelle-1.whl").write_bytes(b"other")
    (folder / "passerelle.cdx.json").unlink()
    (folder / "more.txt").write_bytes(b"")
    assert compare(made, folder) == [
        "more.txt is not in the statement",
        "passerelle-1.whl has other bytes",
        "passerelle.cdx.json is not here",
    ]


def install(environment: Path, name: str, size: int, *needs: str) -> None:
    """A distribution, as far as it is looked at."""
    packages = environment / "lib" / "python3.11" / "site-packages"
    told = packages / f"{name}-1.dist-info"
    told.mkdir(parents=True)
    (packages / f"{name}.py").write_bytes(b"#" * size)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1"]
    lines += [f"Requires-Dist: {need}" for need in needs]
    (told / "METADATA").write_text("\n".join(lines) + "\n", "utf-8")
    (told / "RECORD").write_text(f"{name}.py,,\n", "utf-8")


def test_libraries_that_are_named_do_not_count_with_what_they_bring(tmp_path: Path) -> None:
    install(tmp_path, "client", 1000, "httpx", "orjson")
    install(tmp_path, "httpx", 500, "h11", 'brotli; extra == "brotli"')
    install(tmp_path, "h11", 70)
    install(tmp_path, "brotli", 7)
    install(tmp_path, "orjson", 100)
    install(tmp_path, "pip", 9000)
    assert sum(measure(tmp_path).values()) == 1677
    assert measure(tmp_path, ("httpx",)) == {"client": 1000, "orjson": 100, "brotli": 7}
    with pytest.raises(LookupError, match="has nothing installed"):
        measure(tmp_path / "lib")
    assert close_over({}, ("httpx",)) == set()


def test_too_large_installation_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge("it", 5, 5) == []
    assert judge("it", 6, 5) == ["it takes 6 bytes, and may take 5"]
    install(tmp_path, "client", 3_000_001)
    assert main(["--client", str(tmp_path)]) == 1
    assert "client takes 3000001 bytes, and may take 3000000" in capsys.readouterr().err


def test_libraries_of_which_private_parts_are_used_have_an_upper_bound() -> None:
    """Types that only checkers read do not count; docs/operate/upgrade.md names these libraries."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [
        *project["dependencies"],
        *(one for name in extras if name != "dev" for one in extras[name]),
    ]
    bounded = {
        Requirement(one).name
        for one in asked
        if any(part.operator in {"<", "==", "~="} for part in Requirement(one).specifier)
    }
    private = re.compile(r"^(?:from|import) ([a-z]\w*)(?:\.\w+)*\._", re.MULTILINE)
    used = {
        name
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for name in private.findall(path.read_text("utf-8"))
    }
    assert used == {"redis"}
    assert used | {"uvicorn"} <= bounded
    page = (ROOT / "docs" / "operate" / "upgrade.md").read_text("utf-8")
    said = page[page.index("## Which libraries a version takes") :]
    assert {name for name in bounded if f"`{name}`" not in said} == set()
