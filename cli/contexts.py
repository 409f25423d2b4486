"""Named gateways: the address and the token of each, in one private file of this user.

Commands use the context ``current`` unless another gateway is given. A token is sent only to the gateway of its own
context.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.core.wire.display import explain_error
from passerelle.core.wire.near import find_near
from passerelle.gateway.settings.variables import CONTEXT_VARIABLE
from passerelle.runtime.common.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILE: Final = "contexts.yaml"


@frozen
class GatewayContext:
    """A gateway after a login. ``token`` is None if the gateway needs none."""

    name: str
    url: str
    token: Secret | None = None


@frozen
class ContextFile:
    """The content of the file, which may not exist yet."""

    path: Path
    contexts: Mapping[str, GatewayContext]
    current: str | None = None

    def find(self, name: str) -> GatewayContext:
        """Returns the context of that name.

        Raises:
            ConfigInvalid: there is none.
        """
        found = self.contexts.get(name)
        if found is None:
            near = find_near(name, tuple(self.contexts))
            hint = f"; did you mean {near}?" if near else "; passerelle contexts list shows all"
            raise ConfigInvalid(str(self.path), f"has no context {name!r}{hint}")
        return found

    def put(self, context: GatewayContext) -> ContextFile:
        """Returns the file with this context added and current."""
        return ContextFile(self.path, {**self.contexts, context.name: context}, context.name)

    def use(self, name: str) -> ContextFile:
        """Returns the file with another current context; raises ConfigInvalid."""
        return ContextFile(self.path, self.contexts, self.find(name).name)

    def remove(self, name: str) -> ContextFile:
        """Returns the file without a context; raises ConfigInvalid."""
        self.find(name)
        left = {one: context for one, context in self.contexts.items() if one != name}
        return ContextFile(self.path, left, None if self.current == name else self.current)

    def write(self) -> None:
        """Replaces the file atomically, with mode 0600.

        Raises:
            ConfigInvalid: the file cannot be written.
        """
        import yaml  # noqa: PLC0415  --help loads no YAML

        from passerelle.runtime.common.private_file import replace_private  # noqa: PLC0415

        listed = {
            one.name: {
                "url": one.url,
                **({"token": one.token.get_secret_value()} if one.token else {}),
            }
            for one in self.contexts.values()
        }
        text = yaml.safe_dump({"current": self.current, "contexts": listed}, sort_keys=False)
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_private(self.path, text)
        except OSError as error:
            reason = f"cannot be written: {explain_error(error)}"
            raise ConfigInvalid(str(self.path), reason) from None


def read_contexts(environ: Mapping[str, str] = os.environ) -> ContextFile:
    """Reads the contexts of this user.

    Raises:
        ConfigInvalid: the file cannot be read, or has another format.
    """
    import yaml  # noqa: PLC0415  --help loads no YAML

    path = find_context_file(environ)
    try:
        loaded: object = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError:
        return ContextFile(path, {})
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigInvalid(
            str(path), f"cannot be read: {explain_error(error).splitlines()[0]}"
        ) from None
    tree = cast("dict[str, object]", loaded) if isinstance(loaded, dict) else {}
    listed = tree.get("contexts")
    current = tree.get("current")
    if not isinstance(listed, dict):
        raise ConfigInvalid(str(path), "has no mapping `contexts`")
    found = {
        name: _read_context(path, name, one)
        for name, one in cast("dict[str, object]", listed).items()
    }
    return ContextFile(path, found, current if isinstance(current, str) else None)


def find_context_file(environ: Mapping[str, str]) -> Path:
    """Returns ``$XDG_CONFIG_HOME/passerelle/contexts.yaml``; ignores a relative path there, as XDG requires."""
    base = Path(environ.get("XDG_CONFIG_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".config") / "passerelle" / _FILE


def find_context(environ: Mapping[str, str] = os.environ) -> GatewayContext | None:
    """Returns the context that the environment names, else the current one, if any; raises ConfigInvalid."""
    contexts = read_contexts(environ)
    name = environ.get(CONTEXT_VARIABLE) or contexts.current
    return contexts.find(name) if name else None


def _read_context(path: Path, name: str, loaded: object) -> GatewayContext:
    members = cast("dict[str, object]", loaded) if isinstance(loaded, dict) else {}
    url, token = members.get("url"), members.get("token")
    if not isinstance(url, str) or not isinstance(token, str | None):
        raise ConfigInvalid(str(path), f"contexts.{name}: has no url, or its token is not a string")
    return GatewayContext(name, url, Secret(token) if token else None)
