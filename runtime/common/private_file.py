"""Small secrets of an instance in its data directory: created once, complete, and readable by their owner only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from passerelle.core.errors import ConfigInvalid
from passerelle.core.frozen import frozen
from passerelle.core.wire.display import explain_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@frozen
class PrivateText:
    """The text of a file; ``minted`` is true only for the call that created it."""

    text: str
    minted: bool

    def __repr__(self) -> str:
        return f"PrivateText('***', minted={self.minted})"


def load_or_mint(path: Path, mint: Callable[[], str]) -> PrivateText:
    """Reads a private file, and creates it if there is none.

    It is created complete and with mode 0600, so a crash or a second process never leaves a partial secret.

    Raises:
        ConfigInvalid: the file cannot be read, created or trusted.
    """
    try:
        minted = not path.exists() and _make(path, mint)
    except OSError as error:
        raise _refuse(path, error) from None
    return PrivateText(_read(path), minted)


def read_private(path: Path) -> str | None:
    """Reads a private file; None if there is none.

    Raises:
        ConfigInvalid: the file cannot be read or trusted.
    """
    return _read(path) if path.exists() else None


def replace_private(path: Path, text: str) -> None:
    """Replaces a private file atomically.

    Raises:
        OSError: it cannot be written.
    """
    draft = _write_draft(path, text)
    try:
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _read(path: Path) -> str:
    if path.is_dir():
        raise ConfigInvalid(str(path), "is a folder: name a file")
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigInvalid(str(path), "others can read it: delete it, and a new one is made")
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _refuse(path, error) from None
    if not text:
        raise ConfigInvalid(str(path), "is empty: delete it, and a new one is made")
    return text


def _refuse(path: Path, error: Exception) -> ConfigInvalid:
    return ConfigInvalid(str(path), f"cannot be used: {explain_error(error)}")


def _make(path: Path, mint: Callable[[], str]) -> bool:
    try:
        return write_once(path, mint())
    except OSError as error:
        message = (
            f"is not there and cannot be made ({explain_error(error)}): "
            "let the first start write to the folder, or put the file there"
        )
        raise ConfigInvalid(str(path), message) from None


def write_once(path: Path, text: str) -> bool:
    """Creates a private file; False if there is one.

    Raises:
        OSError: it cannot be created.
    """
    draft = _write_draft(path, text)
    try:
        os.link(draft, path)  # fails if the file exists, where a rename would replace it
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def _write_draft(path: Path, text: str) -> Path:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{text}\n".encode())
        os.fsync(descriptor)
    except OSError:
        draft.unlink()
        raise
    finally:
        os.close(descriptor)
    return draft
