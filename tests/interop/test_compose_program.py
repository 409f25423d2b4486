"""Compose files as podman-compose reads them, and the containers that Podman creates; none is started.

Podman refuses unknown options when it creates a container. Starting one needs privileges that a build does not have.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pytest
import yaml

from tests.contract.test_compose_files import CONTAINERFILE, FILES, FOLDER
from tests.interop.environments import COMPOSE, NotPrepared, require
from tools.image import USER

SECRET: Final = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3I="
IMAGES: Final = ("VALKEY_IMAGE", "PROMETHEUS_IMAGE", "GRAFANA_IMAGE")
"""Variables for third-party images, replaced by the local one: nothing in them is run."""
PROGRAM: Final = str(COMPOSE / ".venv/bin/podman-compose")


@dataclass(frozen=True, slots=True)
class Engine:
    """Podman with separate folders, and the image without content."""

    environ: dict[str, str]

    @classmethod
    def open(cls, folder: Path) -> Engine:
        """Raises NotPrepared: a program is missing."""
        for program in ("podman", "buildah"):
            if shutil.which(program) is None:
                raise NotPrepared(f"{program} is not on PATH: install the package {program}")
        storage, containers = folder / "storage.conf", folder / "containers.conf"
        storage.write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n',
            "utf-8",
        )
        containers.write_text(
            f'[engine]\ntmp_dir = "{folder}/engine"\ncgroup_manager = "cgroupfs"\n'
            f'events_logger = "file"\n[network]\nnetwork_config_dir = "{folder}/networks"\n',
            "utf-8",
        )
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "CONTAINERS_STORAGE_CONF": str(storage),
            "CONTAINERS_CONF": str(containers),
        }
        return cls(environ)

    def run(self, *words: str, **variables: str) -> str:
        """The output of a command that must succeed."""
        done = subprocess.run(
            words,
            cwd=FOLDER,
            env=self.environ | variables,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr or done.stdout
        return done.stdout

    def make_image(self, name: str, folder: Path) -> None:
        """An empty image with the options of its Containerfile."""
        context = folder / "context"
        for one in ("bin", "libraries", "data"):
            (context / one).mkdir(parents=True)
        (context / "base.tar").write_bytes(bytes(10_240))
        words = ["buildah", "bud", "--isolation", "chroot", "-q", "--format", "docker"]
        self.run(*words, "-f", str(CONTAINERFILE), "-t", name, str(context))

    def inspect(self, name: str) -> dict[str, Any]:
        """The engine's record of a container."""
        return cast("dict[str, Any]", json.loads(self.run("podman", "inspect", name))[0])


@pytest.fixture(autouse=True)
def _program() -> None:
    require(COMPOSE)


def read_config(name: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The file with variables and shared parts expanded."""
    return subprocess.run(
        [PROGRAM, "--dry-run", "-f", name, "config"],
        cwd=FOLDER,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", FILES)
def test_the_program_reads_each_service_of_a_file(name: str) -> None:
    written = yaml.safe_load((FOLDER / name).read_text("utf-8"))
    done = read_config(name, PASSERELLE_SECRET_KEY=SECRET)
    assert done.returncode == 0, done.stderr
    services = cast("dict[str, dict[str, Any]]", yaml.safe_load(done.stdout)["services"])
    assert set(services) == set(written["services"])
    for service in services.values():
        assert service["image"]
        assert "$" not in service["image"], "a variable has its default"


def test_missing_secret_is_named() -> None:
    done = read_config("cluster.yaml")
    assert done.returncode != 0
    assert "see the head of this file" in done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FILES)
def test_the_engine_makes_a_container_of_each_service(name: str, tmp_path: Path) -> None:
    engine = Engine.open(tmp_path)
    file: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text("utf-8"))
    gateways = [one for one in file["services"] if one.startswith("gateway")]
    image: str = file["services"][gateways[0]]["image"]
    image = image.partition(":-")[2].removesuffix("}")
    engine.make_image(image, tmp_path)
    variables = dict.fromkeys(IMAGES, image) | {"PASSERELLE_SECRET_KEY": SECRET}
    # A pod takes the image of its pause container from a registry.
    engine.run(PROGRAM, "--in-pod", "false", "-f", name, "up", "--no-start", **variables)
    listed = engine.run("podman", "ps", "-a", "--format", "{{.Names}}").split()
    assert len(listed) == len(file["services"])
    data: list[str] = []
    for gateway in gateways:
        reported = engine.inspect(f"{file['name']}_{gateway}_1")
        assert reported["State"]["Status"] == "created"
        assert reported["Config"]["User"] == f"{USER}:{USER}"
        assert reported["Config"]["Healthcheck"]["Test"][-2:] == ["passerelle", "health"]
        assert reported["HostConfig"]["ReadonlyRootfs"] is True
        assert reported["EffectiveCaps"] in (None, [])
        assert "/tmp" in reported["HostConfig"]["Tmpfs"]  # noqa: S108 - inside of a container
        mounts = {one["Destination"]: one for one in reported["Mounts"]}
        assert mounts["/etc/passerelle/passerelle.yaml"]["RW"] is False
        assert mounts["/var/lib/passerelle"]["RW"] is True
        data.append(mounts["/var/lib/passerelle"]["Name"])
    assert len(set(data)) == len(gateways), "each has a volume of its own"
