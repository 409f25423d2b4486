"""The drawn list of settings has every setting, under its section, with its default."""

from passerelle.gateway.settings import (
    ChannelSettings,
    ClientSettings,
    Settings,
)
from passerelle.gateway.settings_agents import (
    AgentAuth,
    AgentSettings,
    AgentTimeout,
    AgentTls,
    ApiKeyAuth,
    BasicAuth,
    OAuth2Auth,
)
from passerelle.gateway.settings_section import Section
from passerelle.gateway.settings_signing import SigningKeySettings, SigningSettings
from passerelle.gateway.settings_webhooks import WebhookSettings
from tools.settings_docs import render_settings

SECTIONS: dict[str, type[Section]] = {
    "Top level": Settings,
    "`agents[]`": AgentSettings,
    "`agents[].auth`": AgentAuth,
    "`agents[].auth.api_key`": ApiKeyAuth,
    "`agents[].auth.basic`": BasicAuth,
    "`agents[].auth.oauth2`": OAuth2Auth,
    "`agents[].tls`": AgentTls,
    "`agents[].timeout`": AgentTimeout,
    "`clients[]`": ClientSettings,
    "`channels`": ChannelSettings,
    "`signing`": SigningSettings,
    "`signing.keys[]`": SigningKeySettings,
    "`webhooks`": WebhookSettings,
}


def read_rows() -> dict[str, list[str]]:
    """The names of the settings in each section of the text."""
    parts = render_settings().split("\n## ")[1:]
    return {
        part.split("\n", 1)[0]: [
            line.split("`")[1] for line in part.splitlines() if line.startswith("| `")
        ]
        for part in parts
    }


def test_every_section_lists_exactly_its_settings() -> None:
    wanted = {heading: list(section.model_fields) for heading, section in SECTIONS.items()}
    assert read_rows() == wanted


def test_defaults_are_written_as_in_a_file() -> None:
    text = render_settings()
    assert "| `total` | duration | `30m` |" in text
    assert "| `durability` | `everysec`, `always` | `everysec` |" in text
    assert "| `url` | text | required |" in text
