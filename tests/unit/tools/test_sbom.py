"""The bill of materials: whole by its schema, of what the product asks for and of nothing else."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.sbom import EXTRAS, make_bom, read_lock, render

ROOT: Final = Path(__file__).parents[3]
LOCK: Final = (ROOT / "requirements.lock").read_text("utf-8")
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))[
    "project"
]


@pytest.fixture(scope="module")
def text() -> str:
    return render(make_bom(LOCK))


@pytest.fixture(scope="module")
def components(text: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(text)["components"]}


def list_names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(text).name) for text in requirements}


def test_sbom_is_valid_by_its_schema(text: str) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str('{"bomFormat": 1}') is not None


def test_everything_that_the_product_asks_for_is_in_it(
    components: dict[str, dict[str, Any]],
) -> None:
    asked = list_names(PROJECT["dependencies"])
    assert {name for name in asked if components[name]["scope"] == "required"} == asked
    extras = PROJECT["optional-dependencies"]
    assert set(EXTRAS) == extras.keys() - {"dev"}
    for extra in EXTRAS:
        assert list_names(extras[extra]) <= components.keys()
    assert components["grpcio"]["scope"] == components["pyarrow"]["scope"] == "optional"


def test_tools_of_the_tests_are_not_in_it(components: dict[str, dict[str, Any]]) -> None:
    assert {"pytest", "mypy", "hypothesis", "kubernetes-validate"} & components.keys() == set()


def test_versions_and_hashes_are_those_of_the_lock(components: dict[str, dict[str, Any]]) -> None:
    locked = read_lock(LOCK)
    for name, component in components.items():
        assert component["version"] == locked[name].version
        (reference,) = component["externalReferences"]
        said = {f"sha256:{one['content']}" for one in reference["hashes"]}
        assert said == set(locked[name].hashes), name
        assert said
        assert component["purl"] == f"pkg:pypi/{name}@{component['version']}"


def test_sbom_lists_the_dependencies_of_each_package(text: str) -> None:
    graph = {one["ref"]: set(one.get("dependsOn", [])) for one in json.loads(text)["dependencies"]}
    assert list_names(PROJECT["dependencies"]) <= graph["passerelle"]
    reached, waiting = set[str](), ["passerelle"]
    while waiting:
        one = waiting.pop()
        reached.add(one)
        waiting += graph[one] - reached
    assert reached == graph.keys()


def test_the_same_tree_gives_the_same_bytes(text: str) -> None:
    assert render(make_bom(LOCK)) == text
    assert render(make_bom(f"{LOCK}\n# another lock")) != text


def test_package_outside_of_the_lock_is_named() -> None:
    with pytest.raises(LookupError, match="is not in the lock"):
        make_bom("httpx==0.28.0\n")
