"""``passerelle support-bundle``: its files, and that they contain no secrets."""

from __future__ import annotations

import asyncio
import stat
import tarfile
from pathlib import Path
from typing import Final

import orjson
import pytest
import yaml

from passerelle.cli.support_bundle import hide, make_bundle
from passerelle.core.errors import InvalidInput
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.settings.layers import Sources
from passerelle.runtime.common.clock import SystemClock
from passerelle.runtime.common.secret import MASK
from tests.support.ports import find_free_port

HASH: Final = "7d" * 32
SECRETS: Final = {
    "secret_key": "5ec4e7" * 10 + "beef",
    "key of before": "01dba5e" * 9 + "0",
    "password of the store": "store-pass-4411",
    "bearer towards an agent": "agent-bearer-77aa",
    "key in the query of an agent": "agent-password-91bd",
    "secret of a notifier": "whsec_" + "QUJD" * 12,
    "query of the collector": "collector-key-22ee",
    "owner token": "psr_0wner70ken0wner70ken",
    "token of the shell": "psr_70ken0f7he5hell",
    "hash of a key": HASH,
}


def compose_config(folder: Path) -> JsonObject:
    """A configuration with a secret in each setting that can have one."""
    query: JsonObject = {"place": "query", "name": "key", "env": "DEAD_KEY"}
    asked: JsonObject = {"api_key": query}
    pager: JsonObject = {"name": "pager", "url": "http://127.0.0.1:9/hook"}
    return {
        "port": find_free_port(),
        "redis_url": f"redis://gateway:{SECRETS['password of the store']}@127.0.0.1:1/0",
        "data_dir": str(folder / "data"),
        "blobs": str(folder / "blobs"),
        "spans": {
            "otlp_endpoint": f"http://127.0.0.1:1/v1?key={SECRETS['query of the collector']}"
        },
        "agents": [
            {"name": "echo", "url": "http://127.0.0.1:9", "auth": {"bearer_env": "ECHO_BEARER"}},
            {"name": "dead", "url": "http://127.0.0.1:9", "auth": asked},
        ],
        "clients": [{"name": "shop", "key_hash": f"sha256:{HASH}", "may_call": ["echo"]}],
        "approvals": {"notifiers": [{**pager, "secret": SECRETS["secret of a notifier"]}]},
    }


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """A configuration with all secrets, and a log that contains some of them."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "owner-token").write_text(SECRETS["owner token"], "ascii")
    (tmp_path / "data" / "engine.log").write_text(
        f"ready\nsomebody wrote {SECRETS['owner token']} and {SECRETS['bearer towards an agent']} here\n",
        "utf-8",
    )
    config = tmp_path / "passerelle.yaml"
    config.write_text(yaml.safe_dump(compose_config(tmp_path)), "utf-8")
    environ = {
        "PASSERELLE_SECRET_KEY": f"{SECRETS['secret_key']},{SECRETS['key of before']}",
        "PASSERELLE_TOKEN": SECRETS["token of the shell"],
        "ECHO_BEARER": SECRETS["bearer towards an agent"],
        "DEAD_KEY": SECRETS["key in the query of an agent"],
        "OTHER": "not ours",
    }
    return Sources(environ, tmp_path)


def test_no_member_contains_a_secret(sources: Sources) -> None:
    members = asyncio.run(make_bundle(sources, SystemClock())).members
    assert members["settings.json"]
    assert members["faults.txt"] == b""
    everything = b"\n".join(members.values()).decode()
    leaked = [name for name, secret in SECRETS.items() if secret in everything]
    assert leaked == []
    assert "OTHER" not in everything, "other environment variables are omitted"


def test_bundle_has_diagnostic_data(sources: Sources) -> None:
    members = asyncio.run(make_bundle(sources, SystemClock())).members
    settings = orjson.loads(members["settings.json"])
    assert [agent["name"] for agent in settings["agents"]] == ["echo", "dead"]
    assert settings["clients"][0]["key_hash"] == MASK
    assert settings["spans"]["otlp_endpoint"] == f"http://127.0.0.1:1/v1?{MASK}"
    assert settings["agents"][0]["auth"]["bearer_env"] == "ECHO_BEARER", "the name of a variable"
    about = orjson.loads(members["about.json"])
    assert about["form"] == 1
    assert about["passerelle"]
    assert b"redis==" in members["packages.txt"]
    assert members["variables.txt"].split() == [b"PASSERELLE_SECRET_KEY", b"PASSERELLE_TOKEN"]
    assert b"the store is not available" in members["check.txt"]
    assert b"does not answer" in members["readyz.json"]
    assert members["engine.log"].startswith(b"ready\n")


def test_invalid_configuration_is_bundled_with_its_errors(tmp_path: Path) -> None:
    (tmp_path / "passerelle.yaml").write_text("prot: 8080\n", "utf-8")
    members = asyncio.run(make_bundle(Sources({}, tmp_path), SystemClock())).members
    assert b"did you mean port?" in members["faults.txt"]
    (tmp_path / "passerelle.yaml").write_text("a: [", "utf-8")
    members = asyncio.run(make_bundle(Sources({}, tmp_path), SystemClock())).members
    assert members["faults.txt"]
    assert {"about.json", "packages.txt"} <= members.keys()


def test_bundle_is_private_and_never_overwritten(sources: Sources, tmp_path: Path) -> None:
    bundle = asyncio.run(make_bundle(sources, SystemClock()))
    target = tmp_path / "support.tar.gz"
    bundle.write(target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with tarfile.open(target) as packed:
        assert packed.getnames() == [f"passerelle-support/{name}" for name in bundle.members]
    with pytest.raises(InvalidInput, match="File exists"):
        bundle.write(target)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("url", "https://a.example/path", "https://a.example/path"),
        ("url", "https://me:pw@a.example:1/p?k=v#f", f"https://{MASK}@a.example:1/p?{MASK}"),
        ("urls", ["redis://:pw@one,redis://two"], [f"redis://{MASK}@one,redis://two"]),
        ("url", "http://[", MASK),
        ("client_secret", "x", MASK),
        ("token_env", "NAME", "NAME"),
        ("port", 1, 1),
    ],
)
def test_credentials_are_masked_in_settings(
    name: str, value: str | int | list[str], shown: object
) -> None:
    assert hide({name: value}) == {name: shown}  # type: ignore[dict-item]
