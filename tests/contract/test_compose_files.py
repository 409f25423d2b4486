"""Compose files of ``deploy/compose``: valid by the schema of the specification; all referenced files exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest
import typer
import yaml
from redis.exceptions import ConnectionError as RedisConnectionError

from passerelle.cli.main import app
from passerelle.gateway.settings.layers import Sources
from passerelle.gateway.settings.model import Settings
from passerelle.gateway.settings.source import read_settings
from passerelle.store.engine_binary import find_engine
from tests.support.engine import ask
from tests.support.ports import find_free_port
from tests.support.waiting import wait_until
from tools.image import USER

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy" / "compose"
FILES: Final = ("single.yaml", "cluster.yaml")
CONTAINERFILE: Final = ROOT / "deploy" / "image" / "Containerfile"
STOP_S: Final = 10
"""Longest duration of a stop, as docs/operate states."""

TMPFS_OPTIONS: Final = {
    "size",
    "mode",
    "exec",
    "noexec",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "ro",
    "rw",
}
"""Options of a tmpfs that Docker and Podman both support: Podman refuses ``uid`` and ``gid``, which Docker has."""

Service = dict[str, Any]


def read_file(name: str) -> dict[str, Any]:
    """A compose file with default values of variables; a required variable gets some value."""
    text = (FOLDER / name).read_text("utf-8")
    text = re.sub(r"(?<!\$)\$\{\w+:-([^}]*)\}", r"\1", text)
    text = re.sub(r"(?<!\$)\$\{\w+:\?[^}]*\}", "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3I=", text)
    assert "${" not in text
    return cast("dict[str, Any]", yaml.safe_load(text))


def list_gateways(name: str) -> dict[str, Service]:
    services: dict[str, Service] = read_file(name)["services"]
    return {one: reported for one, reported in services.items() if one.startswith("gateway")}


def read_environment() -> dict[str, str]:
    """The environment that the image sets."""
    (block,) = re.findall(r"^ENV ((?:.*\\\n)*.*)$", CONTAINERFILE.read_text("utf-8"), re.MULTILINE)
    return dict(re.findall(r"(\w+)=(\S+)", block))


def list_mounts(service: Service) -> Iterator[tuple[str, str]]:
    """Source and target of a mount."""
    for mount in service.get("volumes", []):
        source, target, *_ = mount.split(":")
        yield source, target


def read_gateway(service: Service) -> Settings:
    """The settings of an instance."""
    (config,) = (FOLDER / one for one, at in list_mounts(service) if at.endswith("passerelle.yaml"))
    environ = read_environment() | service["environment"]
    reading = read_settings(Sources(config=config, environ=environ, folder=FOLDER))
    assert reading.settings is not None, reading
    assert reading.notices == ()
    return reading.settings


def check_schema(path: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).parent / "check-jsonschema"
    return subprocess.run(
        [str(tool), "--builtin-schema", "vendor.compose-spec", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_files_are_valid_and_an_unknown_member_is_noticed(tmp_path: Path) -> None:
    for name in FILES:
        done = check_schema(FOLDER / name)
        assert done.returncode == 0, done.stdout
    wrong = tmp_path / "wrong.yaml"
    text = (FOLDER / "single.yaml").read_text("utf-8")
    wrong.write_text(text.replace("healthcheck:", "healthchek:"), "utf-8")
    done = check_schema(wrong)
    assert done.returncode == 1
    assert "healthchek" in done.stdout


@pytest.mark.parametrize("name", FILES)
def test_every_mounted_file_exists(name: str) -> None:
    file = read_file(name)
    named: set[str] = set()
    for service in file["services"].values():
        for source, _ in list_mounts(service):
            if source.startswith("."):
                assert (FOLDER / source).is_file(), source
            else:
                named.add(source)
        assert set(service.get("depends_on", {})) <= set(file["services"])
    assert named == set(file["volumes"])


@pytest.mark.parametrize("name", FILES)
def test_gateway_has_no_needless_privileges(name: str) -> None:
    for service in list_gateways(name).values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert "user" not in service, "the image has one"
        assert int(service["stop_grace_period"].removesuffix("s")) > STOP_S
        settings = read_gateway(service)
        written = {at for source, at in list_mounts(service) if not source.startswith(".")}
        written |= {one.partition(":")[0] for one in service["tmpfs"]}
        assert "/tmp" in written  # noqa: S108 - inside of a container
        assert str(settings.data_dir) in written
        if settings.blobs is not None:
            assert any(Path(str(settings.blobs)).is_relative_to(one) for one in written)


@pytest.mark.parametrize("name", FILES)
def test_tmpfs_options_are_known_to_docker_and_podman(name: str) -> None:
    mounts = [
        one
        for reported in read_file(name)["services"].values()
        for one in reported.get("tmpfs", ())
    ]
    assert mounts
    for mount in mounts:
        options = mount.partition(":")[2].split(",")
        assert {option.partition("=")[0] for option in options} <= TMPFS_OPTIONS, mount


@pytest.mark.parametrize("name", FILES)
def test_gateway_is_exposed_and_checked_at_its_port(name: str) -> None:
    taken: set[str] = set()
    for service in list_gateways(name).values():
        settings = read_gateway(service)
        assert settings.host == "0.0.0.0"  # noqa: S104 - inside of a container
        (said,) = service["ports"]
        address, published, target = said.split(":")
        assert address == "127.0.0.1"
        assert int(target) == settings.port
        assert f"EXPOSE {target}\n" in CONTAINERFILE.read_text("utf-8")
        taken.add(published)
        word, *command = service["healthcheck"]["test"]
        assert (word, command[0]) == ("CMD", "passerelle")
        # A group of commands, whose types the library keeps private.
        root: Any = typer.main.get_command(app)
        assert set(command[1:]) <= set(root.commands)
    assert len(taken) == len(list_gateways(name))


def test_image_is_the_one_that_is_built() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    for name in FILES:
        images = {one["image"] for one in list_gateways(name).values()}
        assert images == {f"localhost/passerelle:{version}-amd64"}
    text = CONTAINERFILE.read_text("utf-8")
    assert f"USER {USER}:{USER}\n" in text
    assert f"--chown={USER}:{USER}" in text
    manifests = (ROOT / "deploy" / "kubernetes" / "passerelle.yaml").read_text("utf-8")
    assert f"runAsUser: {USER}" in manifests
    assert f"image: passerelle:{version}\n" in manifests
    assert 'ENTRYPOINT ["passerelle"]' in text
    assert "args: [serve, " in manifests


def test_two_gateways_share_store_secret_and_content() -> None:
    one, two = list_gateways("cluster.yaml").values()
    assert one["environment"] == two["environment"]
    *shared, own = one["volumes"]
    *shared_too, other = two["volumes"]
    assert shared == shared_too
    data = str(read_gateway(one).data_dir)
    assert (own.partition(":")[2], other.partition(":")[2]) == (data, data)
    assert own != other, "only one process has a data directory"
    assert read_gateway(one) == read_gateway(two)
    file = (FOLDER / "cluster.passerelle.yaml").read_text("utf-8")
    asked = re.findall(r"redis://([\w-]+):6379", file)
    assert len(set(asked)) == 3
    assert set(asked) <= set(read_file("cluster.yaml")["services"])


def test_cluster_consists_of_the_separate_addresses_of_its_nodes() -> None:
    file = read_file("cluster.yaml")
    nodes = {name: one for name, one in file["services"].items() if name.startswith("valkey")}
    reported = [one["networks"]["default"]["ipv4_address"] for one in nodes.values()]
    made = file["services"]["cluster"]["command"][-1]
    assert re.findall(r"([\d.]+):6379", made) == reported
    assert len(set(reported)) == 6
    assert "--cluster-replicas 1 " in made
    assert set(file["services"]["cluster"]["depends_on"]) == set(nodes)
    subnet = file["networks"]["default"]["ipam"]["config"][0]["subnet"].removesuffix("0/24")
    assert all(one.startswith(subnet) for one in reported)


@pytest.mark.anyio
async def test_the_engine_takes_the_options_of_a_node(tmp_path: Path) -> None:
    program, *options = read_file("cluster.yaml")["services"]["valkey-1"]["command"]
    assert program == "valkey-server"
    # A list item is one argument, including its spaces.
    words = [option.replace("/data", str(tmp_path)) for option in options]
    # By default a node uses the port 10,000 above its own for the bus: the range of ephemeral ports.
    port, bus_port = find_free_port(), find_free_port()
    words += ["--port", f"{port}", "--cluster-port", f"{bus_port}"]
    binary = str(find_engine(None).path)
    with (tmp_path / "log").open("wb") as log:
        node = subprocess.Popen([binary, *words], stdout=log)
        try:
            url = f"redis://127.0.0.1:{port}"

            def answers() -> bool:
                assert node.poll() is None, (tmp_path / "log").read_text()
                try:
                    return ask(url, "PING") is not None
                except RedisConnectionError:
                    return False

            await wait_until(answers, 20, "the node answers")
            for name in ("appendonly", "maxmemory-policy", "min-replicas-to-write"):
                (wanted,) = (word.split()[1] for word in words if word.startswith(f"--{name} "))
                said = cast("dict[bytes, bytes]", ask(url, "CONFIG", "GET", name))
                assert said[name.encode()] == wanted.encode()
        finally:
            node.terminate()
            node.wait(20)


def test_monitored_services_are_the_running_ones() -> None:
    file = read_file("cluster.yaml")
    services: dict[str, Service] = file["services"]
    scraped = yaml.safe_load((FOLDER / "cluster.prometheus.yaml").read_text("utf-8"))
    (job,) = scraped["scrape_configs"]
    targets = {one for group in job["static_configs"] for one in group["targets"]}
    wanted = {f"{n}:{read_gateway(one).port}" for n, one in list_gateways("cluster.yaml").items()}
    assert targets == wanted
    mounted = {at: source for source, at in list_mounts(services["prometheus"])}
    for rules in scraped["rule_files"]:
        assert mounted[f"/etc/prometheus/{rules}"] == f"../prometheus/{rules}"
    boards = yaml.safe_load((FOLDER / "grafana" / "boards.yaml").read_text("utf-8"))
    folder = boards["providers"][0]["options"]["path"]
    assert any(at.startswith(f"{folder}/") for _, at in list_mounts(services["grafana"]))
    sources = yaml.safe_load((FOLDER / "grafana" / "sources.yaml").read_text("utf-8"))
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"
