"""Which keys the configuration trusts for the card of an agent."""

from pathlib import Path

import orjson
import pytest
from pydantic import ValidationError

from passerelle.core.errors import ConfigInvalid
from passerelle.gateway.settings.agents import AgentSettings, CardSignature
from passerelle.gateway.settings.values import make_peer_config
from passerelle.runtime.common.signatures import Signer, mint_signing_key, read_signing_key

KEY = read_signing_key(mint_signing_key("ES256"), "key")


def make_agent(**signature: object) -> AgentSettings:
    return AgentSettings.model_validate(
        {"name": "echo", "url": "http://127.0.0.1:9001", "card_signature": signature}
    )


def test_keys_are_read_from_jwk_files_and_sets(tmp_path: Path) -> None:
    one, several = tmp_path / "one.jwk", tmp_path / "set.json"
    one.write_bytes(orjson.dumps(KEY.jwk))
    several.write_bytes(orjson.dumps(Signer((KEY,)).render_jwks()))
    agent = make_agent(
        policy="require",
        keys=[str(one), str(several)],
        jku_origins=["https://Keys.Example:443/"],
        revoked=["old"],
    )
    trust = make_peer_config(agent, {}).trust
    assert [orjson.loads(key) for key in trust.keys] == [KEY.jwk, KEY.jwk]
    assert trust.jku_origins == {"https://keys.example"}
    assert trust.policy == "require"
    assert set(trust.revoked) == {"old"}
    plain = AgentSettings.model_validate({"name": "echo", "url": "http://127.0.0.1:9001"})
    assert make_peer_config(plain, {}).trust.policy == "off"


@pytest.mark.parametrize("content", ["", "[]", '{"kty": "oct", "kid": "k"}', '{"kty": "EC"}'])
def test_file_without_a_public_key_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key.jwk"
    path.write_text(content)
    with pytest.raises(ConfigInvalid, match=r"agents\.echo\.card_signature\.keys"):
        make_peer_config(make_agent(keys=[str(path)]), {})


@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        ({}, "names no key"),
        ({"policy": "require"}, "names no key"),
        ({"jku_origins": ["http://keys.example"]}, "is not https"),
        ({"jku_origins": ["https://k.example"], "algorithms": ["none"]}, "Input should be"),
        ({"jku_origins": ["https://k.example"], "algorithms": ["HS256"]}, "Input should be"),
    ],
)
def test_ineffective_signature_settings_are_refused(
    signature: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        make_agent(**signature)


def test_this_machine_may_publish_keys_without_tls() -> None:
    assert CardSignature(jku_origins=("http://127.0.0.1:9",)).policy == "warn"
