"""Where the local gateway listens: simple settings are read without the model, with the same result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from passerelle.core.errors import ConfigInvalid
from passerelle.gateway.settings.layers import Sources
from passerelle.gateway.settings.local_gateway import (
    LocalGateway,
    find_local_gateway,
    read_local_gateway,
)
from passerelle.gateway.settings.model import Settings
from passerelle.gateway.settings.source import load_settings


def name_sources(
    folder: Path,
    text: str = "",
    variables: Mapping[str, str] = MappingProxyType({}),
    *,
    port: int | None = None,
) -> Sources:
    if text:
        (folder / "passerelle.yaml").write_text(text, "utf-8")
    return Sources(variables, folder, flags={"port": port, "data_dir": None})


def test_defaults_are_those_of_the_model() -> None:
    assert find_local_gateway(Settings()) == LocalGateway()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "port: 1\nhost: '::'\n",
        "host: 0.0.0.0\nagents: [{name: echo, url: 'http://127.0.0.1:9'}]\n",
        "tls: {cert: ~/cert.pem, key: key.pem}\nport: 65535\n",
        "tls: {cert: cert.pem}\ndata_dir: ~/state\n",
        "tls: null\nauth: open\ndata_dir: relative\n",
        "port: '81'\nhost: localhost\n",
    ],
)
@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"XDG_STATE_HOME": "/state"},
        {"PASSERELLE_PORT": "82", "PASSERELLE_HOST": "127.0.0.9", "PASSERELLE_NOTHING": "1"},
        {"PASSERELLE_DATA_DIR": "~/elsewhere", "PASSERELLE_TLS__CERT": "~/other.pem"},
        {"PASSERELLE_AUTH": "open", "PASSERELLE_HOST": "127.0.0.1"},
        {"PASSERELLE_AUTH": "keys", "PASSERELLE_AGENTS": "[]", "PASSERELLE_URL": "http://x"},
    ],
)
def test_simple_settings_are_read_as_by_the_model(
    tmp_path: Path, text: str, variables: dict[str, str]
) -> None:
    host = variables.get("PASSERELLE_HOST", "127.0.0.1")
    if "auth: open" in text:
        text, variables = f"{text}host: {host}\n", {**variables, "PASSERELLE_HOST": host}
    if variables.get("PASSERELLE_AUTH") == "open" and "host:" in text:
        variables = {**variables, "PASSERELLE_HOST": host}
    sources = name_sources(tmp_path, text, variables)
    settings, notices = load_settings(sources)
    local, told = read_local_gateway(sources)
    expected = find_local_gateway(settings)
    if expected.certificate is not None:
        assert local.certificate == expected.certificate.expanduser()
    assert (local.url, local.is_open, local.data_dir) == (
        expected.url,
        expected.is_open,
        expected.data_dir,
    )
    assert told == notices


def test_flags_go_before_the_rest(tmp_path: Path) -> None:
    sources = name_sources(tmp_path, "port: 1\n", {"PASSERELLE_PORT": "2"}, port=7)
    assert read_local_gateway(sources)[0].url == "http://127.0.0.1:7"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot: 9000\n", "did you mean port"),
        ("port: 65536\n", "65535"),
        ("port: -1\n", "port"),
        ("port: many\n", "port"),
        ("port: [1]\n", "port"),
        ("port: true\n", "port: should be a number"),
        ("host: ''\n", "host"),
        ("host: 5\n", "host"),
        ("auth: closed\n", "auth"),
        ("tls: cert.pem\n", "tls"),
        ("tls: {}\n", "tls.cert"),
        ("tls: {crt: a.pem}\n", "tls.cert: is required"),
        ("tls: {cert: a.pem, kye: b.pem}\n", "did you mean key"),
        ("tls: {cert: a.pem, key: 5}\n", "tls.key"),
        ("data_dir: 5\n", "data_dir"),
        ("data_dir: ~nosuch/x\n", "the home directory does not exist"),
        (f"port: '{'9' * 5000}'\n", "too large a number"),
        ("- port\n", "must be a mapping"),
        ("port: {\n", "is not YAML"),
    ],
)
def test_invalid_settings_have_the_message_of_the_model(
    tmp_path: Path, text: str, said: str
) -> None:
    sources = name_sources(tmp_path, text)
    with pytest.raises(ConfigInvalid, match=said) as ours:
        read_local_gateway(sources)
    with pytest.raises(ConfigInvalid) as theirs:
        load_settings(sources)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(("text", "port"), [("port: 8.0\n", 8), ("port: ' 9 '\n", 9)])
def test_forms_that_only_the_model_reads_are_left_to_it(
    tmp_path: Path, text: str, port: int
) -> None:
    sources = name_sources(tmp_path, text)
    assert load_settings(sources)[0].port == read_local_gateway(sources)[0].port == port


def test_a_fault_in_other_settings_does_not_stop_a_client(tmp_path: Path) -> None:
    sources = name_sources(tmp_path, "port: 9\nagents: [{name: echo, url: nowhere}]\n")
    with pytest.raises(ConfigInvalid, match=r"agents\.0\.url"):
        load_settings(sources)
    assert read_local_gateway(sources)[0].port == 9


@pytest.mark.parametrize(
    ("host", "url"),
    [("::", "http://127.0.0.1:8080"), ("::1", "http://[::1]:8080"), ("a.b", "http://a.b:8080")],
)
def test_where_it_listens_is_where_it_is_asked(host: str, url: str) -> None:
    assert LocalGateway(host=host).url == url
    secured = LocalGateway(host=host, certificate=Path("a.pem"))
    assert secured.url == url.replace("http", "https")
