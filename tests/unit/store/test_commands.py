"""The store uses commands of Redis 7.0: no command outside this list, in Lua or in Python."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
STORE = ROOT / "store"
CLIENT = ROOT / "clients" / "python" / "passerelle_client"
"""The shared tasks of other people's agents have keys and scripts of their own."""
SENDERS = sorted([*STORE.rglob("*.py"), *CLIENT.glob("*.py")])

_STRINGS = {"SET", "GET", "GETDEL", "EXISTS", "UNLINK", "PEXPIRE", "PTTL"}
_HASHES = {
    "HEXISTS",
    "HSET",
    "HSETNX",
    "HGET",
    "HMGET",
    "HGETALL",
    "HKEYS",
    "HVALS",
    "HDEL",
    "HINCRBY",
    "HLEN",
    "HRANDFIELD",
}
_SETS = {"SADD", "SREM", "SMEMBERS"}
_SORTED_SETS = {"ZADD", "ZREM", "ZSCORE", "ZCARD", "ZCOUNT", "ZRANGE"}
_RANGES = {"ZREMRANGEBYRANK", "ZREMRANGEBYSCORE"}
_STREAMS = {"XADD", "XDEL", "XRANGE", "XREVRANGE", "XLEN", "XTRIM", "XINFO"}
_HINTS = {"SPUBLISH", "SSUBSCRIBE", "SUNSUBSCRIBE", "PUBSUB"}
_SERVER = {
    "SENTINEL",
    "EVALSHA",
    "SCRIPT",
    "TIME",
    "INFO",
    "PING",
    "WAIT",
    "CLIENT",
    "CLUSTER",
    "HELLO",
}
_ORDERED = _SORTED_SETS | _RANGES
ALLOWED = frozenset(_STRINGS | _HASHES | _SETS | _ORDERED | _STREAMS | _HINTS | _SERVER)
MAINTENANCE = {
    "maintenance": frozenset({"SCAN"}),
    "inventory": frozenset({"SCAN", "MEMORY"}),
    "key_scan": frozenset({"SCAN"}),
    "engine": frozenset({"CONFIG"}),
    "log_rewrite": frozenset({"BGREWRITEAOF"}),
}
"""What only the modules that no request needs may send besides; ``CONFIG`` to an engine of our own alone."""
ALLOW_OOM = frozenset(
    {
        *(
            "trim",
            "trim_inbox",
            "archive_commit",
            "note_segment",
            "begin_merge",
            "merge_segments",
            "claim_due",
            "extend_claim",
            "hasten_due",
            "lease",
            "take_over",
            "release",
            "target",
            "revive",
        ),
        *("begin_forgetting", "end_forgetting", "forget_in_inbox", "forget_rows", "forget_session"),
        *("forget_home", "forget_sessions", "note_erasures", "note_gone", "complete_head"),
        *("ack", "hello", "bump_epoch", "delete_shared", "keep_link", "owe_link", "settle_link"),
        *(
            "keep_owner_key",
            "register_agent",
            "keep_agent",
            "settle_bundle",
            "forget_uploads",
            "announce",
            "open_rows",
            "watch_lists",
        ),
    }
)
"""A full server keeps its leases and presence, admits devices and agents, announces a loss, and can be drained."""
_LUA_CALL = re.compile(r"redis\.p?call\(\s*(?:'([A-Za-z]+)'|\"([A-Za-z]+)\"|([^'\")]+))")
_SENDERS = frozenset({"pack", "ask", "ask_once"})


def lua_files() -> list[Path]:
    return sorted([*(STORE / "lua").glob("*.lua"), *(CLIENT / "lua").glob("*.lua")])


def all_lua_files() -> list[Path]:
    """With what scripts share, which is no script by itself."""
    return [*lua_files(), *(STORE / "lua" / "shared").glob("*.lua")]


def commands_of_lua(text: str) -> Iterator[str]:
    for single, double, computed in _LUA_CALL.findall(text):
        yield (single or double).upper() or f"computed: {computed}"


def commands_of_python(text: str) -> Iterator[str]:
    """First literal arguments of what packs or sends a command; a computed one is named as such."""
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id in _SENDERS:
            words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            computed = any(isinstance(arg, ast.Starred) for arg in node.args[:2])
            if not computed:
                yield next((word for word in words if isinstance(word, str)), "computed")


@pytest.mark.parametrize("path", all_lua_files(), ids=lambda path: path.stem)
def test_script_uses_only_commands_of_the_list(path: Path) -> None:
    found = set(commands_of_lua(path.read_text(encoding="utf-8")))
    assert found
    assert found <= ALLOWED


@pytest.mark.parametrize("path", SENDERS, ids=lambda path: path.stem)
def test_caller_uses_only_commands_of_the_list(path: Path) -> None:
    allowed = ALLOWED | MAINTENANCE.get(path.stem, frozenset())
    assert set(commands_of_python(path.read_text(encoding="utf-8"))) <= allowed


def test_both_readers_see_a_forbidden_command() -> None:
    assert list(commands_of_lua("redis.call('KEYS', '*')\nredis.pcall(name)")) == [
        "KEYS",
        "computed: name",
    ]
    assert list(commands_of_python('pack("XREAD", 1)\nawait ask(wire, "KEYS", "*")')) == [
        "XREAD",
        "KEYS",
    ]


def test_python_callers_were_found_at_all() -> None:
    found = {
        command
        for path in SENDERS
        for command in commands_of_python(path.read_text(encoding="utf-8"))
    }
    assert {"XRANGE", "HGETALL", "CLUSTER", "SSUBSCRIBE", "WAIT"} <= found


@pytest.mark.parametrize("path", lua_files(), ids=lambda path: path.stem)
def test_script_may_run_on_a_full_server_only_where_that_frees_or_keeps_what_is(path: Path) -> None:
    first = path.read_text(encoding="utf-8").split("\n", 1)[0]
    assert first == ("#!lua flags=allow-oom" if path.stem in ALLOW_OOM else "#!lua")


@pytest.mark.parametrize("path", all_lua_files(), ids=lambda path: path.stem)
def test_script_never_prints_a_large_number_without_a_format(path: Path) -> None:
    """``tostring`` and concatenation of a number keep 14 digits; milliseconds and sequences have more to lose."""
    text = path.read_text(encoding="utf-8")
    assert "tostring(" not in text
    assert not re.search(r"\.\.\s*(now|top|upto)\b", text)
