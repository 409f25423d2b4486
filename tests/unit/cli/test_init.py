"""The generated configuration: valid as it is, and with each of its comments uncommented."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from passerelle.cli.init import compose_config, propose_name, write_config
from passerelle.core.errors import ConfigInvalid, InvalidInput
from passerelle.gateway.settings.model import Settings

AGENT = "https://agents.example.com/builder"


def read(text: str) -> Settings:
    return Settings.model_validate(yaml.safe_load(text))


def test_written_configuration_has_the_agent_and_the_port() -> None:
    settings = read(compose_config("passerelle.yaml", AGENT, "builder", 9000))
    assert settings.port == 9000
    assert [(one.name, one.url) for one in settings.agents] == [("builder", AGENT)]


def test_without_an_agent_the_configuration_has_none() -> None:
    assert read(compose_config("passerelle.yaml", None, "agent", 8080)).agents == ()


@pytest.mark.parametrize("agent", [AGENT, None])
def test_every_comment_that_is_a_setting_can_be_taken_in(agent: str | None) -> None:
    text = compose_config("passerelle.yaml", agent, "builder", 8080)
    taken_in = re.sub(r"^#(?=\S|  )", "", text, flags=re.MULTILINE)
    assert taken_in.count("\n#") < text.count("\n#") - 5
    settings = read(taken_in)
    (one,) = settings.agents
    assert one.auth is not None
    assert settings.redis_url is not None
    assert settings.clients[0].name == "orchestrator"


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (AGENT, "builder"),
        ("http://127.0.0.1:9001", "agent"),
        ("http://localhost:9001/", "agent"),
        ("http://echo:80", "echo"),
        ("https://a.example/Agents/Pay_Ments/", "ments"),
        ("", "agent"),
        ("no address", "address"),
    ],
)
def test_a_name_is_proposed_that_can_be_used(agent: str, name: str) -> None:
    assert propose_name(agent) == name
    assert read(compose_config("x.yaml", "http://a.example", name, 1)).agents[0].name == name


@pytest.mark.parametrize(
    ("agent", "name", "port", "says"),
    [
        ("ftp://a.example", "a", 8080, "agents.0.url"),
        ("not an address", "a", 8080, "agents.0.url"),
        ("http://a.example\nport: 1", "a", 8080, "agents.0.url"),
        ("http://a.example: # x", "a", 8080, "agents.0.url"),
        (AGENT, "Not A Name", 8080, "agents.0.name"),
        (AGENT, "a", 70_000, "port"),
    ],
)
def test_invalid_input_is_refused_and_nothing_is_written(
    tmp_path: Path, agent: str, name: str, port: int, says: str
) -> None:
    with pytest.raises(ConfigInvalid, match=re.escape(says)):
        write_config(tmp_path / "passerelle.yaml", agent, name, port)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "passerelle.yaml"
    file.write_text("port: 1", "utf-8")
    with pytest.raises(InvalidInput, match="exists already"):
        write_config(file, AGENT, "a", 8080)
    assert file.read_text("utf-8") == "port: 1"
    assert list(tmp_path.iterdir()) == [file]


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be written: No such file"):
        write_config(tmp_path / "none" / "passerelle.yaml", AGENT, "a", 8080)
