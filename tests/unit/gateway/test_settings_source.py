"""Settings: which source wins, and the fault of a value that cannot be used."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest

from passerelle.core.errors import ConfigInvalid
from passerelle.core.wire.json import JsonObject
from passerelle.gateway.settings.file import KeyPath
from passerelle.gateway.settings.layers import Sources
from passerelle.gateway.settings.model import Settings
from passerelle.gateway.settings.schema import SchemaPlace
from passerelle.gateway.settings.source import load_settings, read_settings
from passerelle.gateway.settings.values import read_forget_terms, read_memory_terms
from passerelle.runtime.common.durations import Duration
from passerelle.store.archive.terms import ForgetTerms, MemoryTerms

HASH = "0" * 64


def write(folder: Path, text: str) -> Path:
    path = folder / "passerelle.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def load(
    folder: Path,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str | int | Path | None] | None = None,
) -> Settings:
    return load_settings(Sources(environ or {}, folder, None, flags))[0]


def faults(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> list[str]:
    path = write(folder, text)
    return [
        str(fault).removeprefix(f"{path}:")
        for fault in read_settings(Sources(environ or {}, folder)).faults
    ]


def test_flags_beat_environment_beats_file(tmp_path: Path) -> None:
    write(tmp_path, "host: 127.0.0.2\nport: 1\nlog_level: debug\n")
    environ = {"PASSERELLE_PORT": "2", "PASSERELLE_HOST": "127.0.0.3"}
    settings = load(tmp_path, environ, {"port": 3, "redis_url": None})
    assert (settings.log_level, settings.host, settings.port) == ("debug", "127.0.0.3", 3)


def test_no_source_at_all_is_a_valid_start(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.agents == ()
    assert (settings.host, settings.port, settings.auth) == ("127.0.0.1", 8080, "keys")


def test_data_directory_follows_the_state_folder_of_the_user(tmp_path: Path) -> None:
    assert load(tmp_path, {"XDG_STATE_HOME": "/state"}).data_dir == Path("/state/passerelle")
    assert (
        load(tmp_path, {"XDG_STATE_HOME": "state"}).data_dir
        == Path("~/.local/state/passerelle").expanduser()
    )
    chosen = load(tmp_path, {"XDG_STATE_HOME": "/state", "PASSERELLE_DATA_DIR": "/data"})
    assert chosen.data_dir == Path("/data")


def test_named_file_beats_the_one_of_the_folder(tmp_path: Path) -> None:
    write(tmp_path, "port: 1\n")
    other = tmp_path / "other.yaml"
    other.write_text("port: 2\n", encoding="utf-8")
    assert load_settings(Sources({}, tmp_path, other))[0].port == 2
    assert load(tmp_path, {"PASSERELLE_CONFIG": str(other)}).port == 2


def test_whole_file_reads_into_values(tmp_path: Path) -> None:
    write(
        tmp_path,
        f"""
agents:
  - name: echo
    url: http://127.0.0.1:9001/
    auth: {{bearer_env: ECHO_TOKEN}}
    timeout: {{total: 30m, idle: 2m}}
    tags: [standard]
clients:
  - {{name: orchestrator, key_hash: "{HASH}", may_call: [echo], scopes: [a2a:call, tasks:read]}}
channels: {{heartbeat: 5s}}
""",
    )
    settings = load(tmp_path, {"ECHO_TOKEN": "t0p"})
    agent = settings.agents[0]
    assert agent.url == "http://127.0.0.1:9001"
    assert agent.timeout.total == Duration(1_800_000)
    assert agent.auth is not None
    assert agent.auth.bearer_env == "ECHO_TOKEN"
    assert settings.channels.limits().idle_s == 15.0


def test_nested_variable_reaches_into_a_section_and_lists_are_yaml(tmp_path: Path) -> None:
    write(tmp_path, "channels: {subscriptions: 7, replay_events: 8}\n")
    environ = {
        "PASSERELLE_CHANNELS__SUBSCRIPTIONS": "9",
        "PASSERELLE_AGENTS": '[{"name": "echo", "url": "http://127.0.0.1:9001"}]',
    }
    settings = load(tmp_path, environ)
    assert (settings.channels.subscriptions, settings.channels.replay_events) == (9, 8)
    assert settings.agents[0].name == "echo"


@pytest.mark.parametrize("section", ["x", "null", "[a]"])
def test_variable_for_a_member_of_a_non_mapping_is_a_fault(tmp_path: Path, section: str) -> None:
    environ = {"PASSERELLE_TLS": section, "PASSERELLE_TLS__KEY": "k.pem"}
    with pytest.raises(ConfigInvalid, match=r"PASSERELLE_TLS__KEY: .*PASSERELLE_TLS, which"):
        load(tmp_path, environ)
    settings = load(tmp_path, environ | {"PASSERELLE_TLS": "{cert: c.pem}"})
    assert settings.tls is not None
    assert (settings.tls.cert, settings.tls.key) == (Path("c.pem"), Path("k.pem"))


@pytest.mark.parametrize("text", ["[2024-13-45]", "[", "[" * 2000, "[!!bool x]", "&a [*a]"])
def test_variable_that_cannot_be_parsed_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"^PASSERELLE_AGENTS: is neither YAML nor JSON"):
        load(tmp_path, {"PASSERELLE_AGENTS": text})


def test_unknown_key_names_file_line_key_and_nearest_name(tmp_path: Path) -> None:
    text = (
        "port: 1\nagents:\n  - name: echo\n    url: http://127.0.0.1:9001\n    tagz: [a]\nprot: 2\n"
    )
    assert faults(tmp_path, text) == [
        "5: agents.0.tagz: is an unknown setting; did you mean tags?",
        "6: prot: is an unknown setting; did you mean port?",
    ]


def test_every_fault_names_the_source_of_its_value(tmp_path: Path) -> None:
    write(tmp_path, "durability: sometimes\n")
    environ = {"PASSERELLE_CHANNELS__SUBSCRIPTIONS": "many"}
    reading = read_settings(Sources(environ, tmp_path, None, {"port": 70_000}))
    assert sorted(fault.where.rpartition("/")[2] for fault in reading.faults) == [
        "--port",
        "PASSERELLE_CHANNELS__SUBSCRIPTIONS",
        "passerelle.yaml:1",
    ]


def test_variable_that_is_no_setting_is_a_notice(tmp_path: Path) -> None:
    settings, notices = load_settings(Sources({"PASSERELLE_PROT": "1"}, tmp_path))
    assert settings.port == 8080
    assert notices == ("PASSERELLE_PROT is an unknown setting; did you mean PASSERELLE_PORT?",)


def test_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    assert load(tmp_path, {"PASSERELLE_REDIS_URL": ""}).redis_url is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("host: 0.0.0.0\nauth: open\n", "2: auth: open is for loopback addresses only"),
        ("redis_url: http://x\n", "1: redis_url: must begin with redis://"),
        (
            "agents:\n- {name: a, url: http://h}\n- {name: a, url: http://h}\n",
            "3: agents.1.name: 'a' is a duplicate name",
        ),
        (
            "agents:\n- {name: a, url: http://h, auth: {bearer_env: NOPE}}\n",
            "2: agents.0.auth.bearer_env: the environment variable NOPE is not set",
        ),
        (
            "agents:\n- {name: a, url: http://h, timeout: {total: 1s}}\n",
            "2: agents.0.timeout.idle: is longer than timeout.total",
        ),
        (
            f'clients:\n- {{name: c, key_hash: "{HASH}", may_call: [nobody]}}\n',
            "2: clients.0.may_call.0: there is no agent 'nobody'",
        ),
        (
            f'clients:\n- {{name: owner, key_hash: "{HASH}", may_call: []}}\n',
            "2: clients.0.name: owner is the holder of the owner token",
        ),
        (
            f'clients:\n- name: c\n  key_hash: "{HASH}"\n  may_call: []\n  kind: agent\n  scopes: [approvals:decide]\n',
            "6: clients.0.scopes: an agent cannot have approvals:decide",
        ),
        (f'clients:\n- {{name: c, key_hash: "{HASH}"}}\n', "2: clients.0.may_call: is required"),
        (
            "agents:\n- {name: a, url: 'http://u:p@h'}\n",
            "2: agents.0.url: must not contain credentials",
        ),
        (
            "agents:\n- {name: a, url: http://h, timeout: {total: 30}}\n",
            "2: agents.0.timeout.total: is a duration",
        ),
        ("channels: {heartbeat: 0s}\n", "1: channels.heartbeat: should be 1s or more"),
        (f"memory: {{engine_bytes: {10**30}}}\n", "1: memory.engine_bytes: should be 1152921504"),
        ("data_dir: ''\n", "1: data_dir: should be a path; leave the key out for none"),
        ("tls: {cert: ''}\n", "1: tls.cert: should be a path; leave the key out for none"),
    ],
)
def test_setting_that_cannot_hold_is_named_with_its_line(
    tmp_path: Path, text: str, fault: str
) -> None:
    found = faults(tmp_path, text)
    assert found
    assert found[0].startswith(fault)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_open_is_allowed_on_loopback(tmp_path: Path, host: str) -> None:
    assert load(tmp_path, flags={"auth": "open", "host": host}).auth == "open"


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "::", "192.168.1.1", "example.com", "localhost.example.com"]
)
def test_open_is_refused_everywhere_else(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigInvalid, match="open is for loopback addresses only"):
        load(tmp_path, flags={"auth": "open", "host": host})


def test_first_fault_is_raised_with_the_number_of_the_others(tmp_path: Path) -> None:
    path = write(tmp_path, "prot: 1\nhots: x\n")
    with pytest.raises(ConfigInvalid) as caught:
        load(tmp_path)
    assert caught.value.details["where"] == f"{path}:1"
    assert "and 1 more" in caught.value.message


def test_secret_is_in_no_text_of_settings_and_in_no_fault(tmp_path: Path) -> None:
    url = "redis://user:hunter2@127.0.0.1"
    settings = load(tmp_path, flags={"redis_url": url})
    shown = f"{settings} {settings!r} {settings.model_dump()} {settings.model_dump_json()}"
    assert "hunter2" not in shown
    assert settings.redis_url is not None
    assert settings.redis_url.get_secret_value() == url
    assert "hunter2" not in str(faults(tmp_path, "redis_url: {user: hunter2}\n"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("agents:\n  echo: {url: 'http://h'}\n", "1: agents: should be a list"),
        (
            "agents:\n  - {name: Echo, url: 'http://h'}\n",
            "2: agents.0.name: should be 1 to 63 of a-z, 0-9, _ and -, with a letter or digit first",
        ),
        (
            "clients:\n  - {name: x, key_hash: abc, may_call: []}\n",
            "2: clients.0.key_hash: should be sha256: and 64 hex digits, as passerelle key prints them",
        ),
        (
            "agents:\n  - {name: e, url: 'http://h', auth: {bearer_env: 'A B'}}\n",
            "2: agents.0.auth.bearer_env: should be the name of an environment variable",
        ),
        (
            "agents:\n  - {name: e, url: 'http://h', auth: {api_key: {name: 'X Key', env: HOME}}}\n",
            "2: agents.0.auth.api_key.name: should be 1 to 100 letters, digits, _, ., ~ and -",
        ),
        ("data_dir:\n", "1: data_dir: should be a path"),
        ("blobs: 5\n", "1: blobs: should be a folder, or s3://bucket/prefix"),
        (
            "proxy: {addresses: [nowhere]}\n",
            "1: proxy.addresses.0: should be an IP address or network, such as 10.0.0.0/8",
        ),
        (
            "public_url: gateway.example\n",
            "1: public_url: should be a URL with http:// or https:// and a host",
        ),
        (
            "data_dir: ~nosuch/state\n",
            "1: data_dir: ~nosuch/state: the home directory does not exist; set HOME, or give an absolute path",
        ),
        ("port: x\n", "1: port: should be a whole number"),
        ("port: 1.5\n", "1: port: should be a whole number"),
        ("port: -1\n", "1: port: should be 0 or more"),
        (
            "port: yes\n",
            "1: port: should be a number; YAML reads a bare yes, no, on or off as true or false",
        ),
        (
            "agents:\n  - {name: e, url: 'http://h', limits: {concurrency: on}}\n",
            "2: agents.0.limits.concurrency: should be a number; YAML reads a bare yes, no, on or off as true or false",
        ),
        ("channels: 5\n", "1: channels: should be a mapping of settings"),
        (
            "agents:\n  - {name: e, url: 'http://h', card_path: card}\n",
            "2: agents.0.card_path: should be a path that begins with /, without ? and #",
        ),
    ],
)
def test_fault_speaks_of_lists_and_names_and_not_of_types_and_patterns(
    tmp_path: Path, text: str, fault: str
) -> None:
    assert faults(tmp_path, text) == [fault]


def test_flag_of_a_section_is_known_by_its_dotted_name(tmp_path: Path) -> None:
    assert load(tmp_path, flags={"grpc.port": 9000}).grpc.port == 9000
    with pytest.raises(ConfigInvalid, match=r"--grpc-port: grpc.port: "):
        load(tmp_path, flags={"grpc.port": 70_000})


def test_finished_tasks_are_kept_forever_by_default(tmp_path: Path) -> None:
    assert read_forget_terms(load(tmp_path)) == ForgetTerms()
    write(
        tmp_path,
        "retention: {forget: {completed: 90d, failed: 4000d}}\n"
        "agents:\n"
        "  - {name: echo, url: 'http://e.example', tenants: [one], forget: 30d}\n"
        "  - {name: bank, url: 'http://b.example', forget: never}\n"
        "  - {name: news, url: 'http://n.example'}\n",
    )
    day_ms = 86_400_000
    month: dict[str, int] = dict.fromkeys(
        ("completed", "failed", "cancelled", "timed_out"), 30 * day_ms
    )
    assert read_forget_terms(load(tmp_path)) == ForgetTerms(
        {"completed": 90 * day_ms, "failed": 4_000 * day_ms},
        {"echo": month, "echo/one": month, "bank": {}},
    )
    for words in ("never", "null", "{}"):
        write(tmp_path, f"retention: {{forget: {words}}}\n")
        assert read_forget_terms(load(tmp_path)) == ForgetTerms()


def test_each_agent_may_have_its_own_time_in_memory(tmp_path: Path) -> None:
    day_ms = 86_400_000
    assert read_memory_terms(load(tmp_path)) == MemoryTerms(day_ms)
    write(
        tmp_path,
        "retention: {memory: null, forget: 9d}\n"
        "agents:\n"
        "  - {name: echo, url: 'http://e.example', tenants: [one], memory: 2h, forget: 3h}\n"
        "  - {name: bank, url: 'http://b.example', memory: never}\n"
        "  - {name: news, url: 'http://n.example'}\n",
    )
    assert read_memory_terms(load(tmp_path)) == MemoryTerms(
        None, {"echo": 7_200_000, "echo/one": 7_200_000, "bank": None}
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("retention: {forget: 23h}", "retention.forget: 23h for completed is shorter than"),
        (
            "retention: {forget: {failed: 1h}}",
            "retention.forget: 1h for failed is shorter than ret",
        ),
        ("retention: {memory: 48h, forget: 1d}", "is shorter than retention.memory, 2d: a session"),
        (
            "agents: [{name: echo, url: 'http://e.example', forget: {completed: 1h}}]",
            "agents.0.forget: 1h for completed is shorter than retention.memory",
        ),
        (
            "retention: {memory: null}\nagents: [{name: a, url: 'http://e', memory: 2d, forget: 1d}]",
            "agents.0.forget: 1d for completed is shorter than its memory, 2d",
        ),
        (
            "retention: {forget: 2d}\nagents: [{name: echo, url: 'http://e.example', memory: 3d}]",
            "agents.0.memory: 3d is longer than retention.forget, 2d for completed: a session",
        ),
        (
            "agents: [{name: echo, url: 'http://e.example', memory: soon}]",
            "agents.0.memory: is a duration",
        ),
        (
            "agents: [{name: echo, url: 'http://e.example', memory: 7}]",
            "agents.0.memory: is never or a d",
        ),
        ("retention: {forget: 40000d}", "retention.forget: is at most 36600d"),
        ("retention: {forget: soon}", "retention.forget: is a duration"),
        ("retention: {forget: {lost: 90d}}", "retention.forget.lost"),
        ("retention: {forget: {failed: soon}}", "retention.forget.failed: is a duration"),
    ],
)
def test_a_time_to_forget_that_cannot_hold_is_refused(tmp_path: Path, text: str, said: str) -> None:
    [fault] = faults(tmp_path, text + "\n")
    assert said in fault


_WRONG: tuple[object, ...] = (
    *("zz zz", "", -5, 10**30, 1.5, True),
    *([[[0]]], {"zzq": 1}, [{"zzq": 1}]),
)


def _list_keys(schema: JsonObject, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Each key of the schema, with 0 for an item of a list."""
    place = SchemaPlace(schema)
    for name in place.names():
        yield (*path, name)
        below = place.descend((name,))
        assert below is not None
        yield from _list_keys(below.schema, (*path, name))
    for form in (schema, *cast("list[JsonObject]", schema.get("anyOf", []))):
        if (item := SchemaPlace(form).descend((0,))) is not None:
            yield (*path, 0)
            yield from _list_keys(item.schema, (*path, 0))


def _nest(path: KeyPath, value: object) -> object:
    for step in reversed(path):
        value = [value] if isinstance(step, int) else {step: value}
    return value


def test_wrong_value_of_each_key_is_one_fault_of_the_key_in_words(tmp_path: Path) -> None:
    keys = list(_list_keys(SchemaPlace.root().schema))
    assert len(keys) > 300
    spoken = re.compile(r"\^|\\|input|instance|decimal|lax|literal|function-|python")
    of_types = re.compile(r"[\[(]|constrained")
    for path in keys:
        for value in _WRONG:
            written = write(tmp_path, json.dumps(_nest(path, value)))
            found = read_settings(Sources({}, tmp_path)).faults
            told = [(fault.key, fault.reason) for fault in found]
            here = [fault for fault in found if fault.key.startswith(str(path[0]))]
            assert all(fault.where == f"{written}:1" for fault in here), (path, value)
            assert len({key for key, _ in told}) == len(told), "one fault for each key"
            if path[-1] != "when":  # what is wrong with an expression is said by its parser
                ugly = [one for one in told if of_types.search(one[0]) or spoken.search(one[1])]
                assert ugly == [], (path, value)
