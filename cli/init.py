"""``passerelle init``: a first configuration, with what most people change next beside it as comments."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import urlsplit

from passerelle.core.errors import ConfigInvalid
from passerelle.gateway.settings.layers import Sources
from passerelle.gateway.settings.source import read_settings

DEFAULT_PORT: Final = 8080
_HEAD: Final = """\
# The configuration of a Passerelle gateway. `passerelle check {file}` says what is wrong in it, and in which line.
# A line that begins with # and no space is a setting that is not used yet: take the # away.

# Where it listens. With another host it is reached from other machines; they need a key, or the owner token.
port: {port}
#host: 0.0.0.0

# The agents that it stands in front of. Each is served at /agents/<name>.
"""
_AGENT: Final = """\
{off}  - name: {name}
{off}    url: {url}
#    auth: {{bearer_env: {variable}}}
#    timeout: {{total: 30m, idle: 2m}}
"""
_TAIL: Final = """
# Who may call, beside you with the owner token. `passerelle key NAME` makes a key and prints what stands here.
#clients:
#  - name: orchestrator
#    key_hash: "sha256:0000000000000000000000000000000000000000000000000000000000000000"
#    may_call: ["*"]

# Where everything is kept: in a folder, by an engine that is started inside, or on a Redis or Valkey server.
#data_dir: ./state
#redis_url: redis://127.0.0.1:6379

# Which logs: info, or debug; for people (console) or for programs (json).
#log_level: info
#log_format: console
"""


def compose_config(file: str, agent: str | None, name: str, port: int) -> str:
    """The text of a configuration with one agent, or with one as a comment where there is none yet."""
    off = "" if agent else "#"
    variable = f"{re.sub(r'[^A-Z0-9]', '_', name.upper())}_TOKEN"
    url = _write_scalar(agent or "http://127.0.0.1:9001")
    entry = _AGENT.format(off=off, name=_write_scalar(name), url=url, variable=variable)
    return f"{_HEAD.format(file=file, port=port)}{off}agents:\n{entry}{_TAIL}"


def _write_scalar(text: str) -> str:
    """A text as YAML: itself where it is plain, else as JSON writes it."""
    return text if re.fullmatch(r"[A-Za-z][\w:/.~%-]*", text) else json.dumps(text)


def propose_name(agent: str) -> str:
    """A name for an agent, from the last word of its address."""
    parts = urlsplit(agent)
    words = [*filter(None, re.split(r"[^a-z0-9]+", f"{parts.hostname or ''} {parts.path}".lower()))]
    named = [word for word in words if not word.isdigit()]
    return named[-1] if named and named[-1] != "localhost" else "agent"


def write_config(file: Path, agent: str | None, name: str, port: int) -> None:
    """Writes a configuration where none is yet.

    Raises:
        ConfigInvalid: there is a file already, it cannot be written, or what was said is no address, name or port;
            nothing is written then.
    """
    text = compose_config(file.name, agent, name, port)
    with TemporaryDirectory() as folder:
        tried = Path(folder) / file.name
        tried.write_text(text, "utf-8")
        for fault in read_settings(Sources({}, tried.parent, tried)).faults:
            # Its line is one of a file that is not there.
            raise ConfigInvalid(fault.key, fault.reason)
    try:
        with file.open("x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        raise ConfigInvalid(str(file), "is there already; nothing was changed") from None
    except OSError as error:
        raise ConfigInvalid(str(file), f"cannot be written: {error.strerror or error}") from None
