"""Compose files as podman-compose reads them; nothing is started, as that takes a container engine."""

from __future__ import annotations

import os
import subprocess
from typing import Any, Final, cast

import pytest
import yaml

from tests.contract.test_compose_files import FILES, FOLDER
from tests.interop.environments import COMPOSE, require

SECRET: Final = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3I="


def read_config(name: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The file with variables and shared parts filled in."""
    require(COMPOSE)
    words = [str(COMPOSE / ".venv/bin/podman-compose"), "--dry-run", "-f", name, "config"]
    return subprocess.run(
        words,
        cwd=FOLDER,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def read_services(name: str, **variables: str) -> dict[str, dict[str, Any]]:
    done = read_config(name, **variables)
    assert done.returncode == 0, done.stderr
    return cast("dict[str, dict[str, Any]]", yaml.safe_load(done.stdout)["services"])


@pytest.mark.parametrize("name", FILES)
def test_the_program_reads_each_service_of_a_file(name: str) -> None:
    written = yaml.safe_load((FOLDER / name).read_text("utf-8"))
    services = read_services(name, PASSERELLE_SECRET_KEY=SECRET)
    assert set(services) == set(written["services"])
    for service in services.values():
        assert service["image"]
        assert "$" not in service["image"], "a variable has its default"


def test_two_gateways_get_the_same_secret_and_folders_of_their_own() -> None:
    services = read_services("cluster.yaml", PASSERELLE_SECRET_KEY=SECRET)
    gateways = [services["gateway-1"], services["gateway-2"]]
    for gateway in gateways:
        assert gateway["environment"]["PASSERELLE_SECRET_KEY"] == SECRET
        assert gateway["read_only"]
    one, two = ({str(mount) for mount in gateway["volumes"]} for gateway in gateways)
    assert len(one & two) == 2
    assert len(one - two) == len(two - one) == 1


def test_without_the_secret_the_program_says_what_is_missing() -> None:
    done = read_config("cluster.yaml")
    assert done.returncode != 0
    assert "see the head of this file" in done.stderr
