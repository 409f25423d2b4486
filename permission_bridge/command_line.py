"""A command as its words, for rules: never as a text that begins with something.

``git`` as the beginning of a text would also match ``git x; rm -rf ~``. So a command is read into the simple commands
that it runs, each a list of words. What a shell would work out first (substitution, variables, globs) cannot be read:
it is *opaque*, and no rule that allows may match it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Final

LENGTH_LIMIT: Final = 8_192
"""Longer lines are not read: nobody could be shown them whole either."""
_OPERATORS: Final = "();<>|&\n"
_WORKED_OUT: Final = re.compile(r"[$`*?\[\]{}~!#\\]")
_ASSIGNS: Final = re.compile(r"[A-Za-z_]\w*\+?=")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What a command runs. ``opaque``: it runs more, or something else, than ``commands`` says."""

    commands: tuple[tuple[str, ...], ...]
    opaque: bool = False

    @property
    def argv(self) -> tuple[str, ...]:
        """The words of the only command; empty when there are several, or when they cannot be told."""
        return self.commands[0] if len(self.commands) == 1 and not self.opaque else ()

    def is_only(self, words: tuple[str, ...]) -> bool:
        """Whether it runs one command and nothing else, which begins with ``words``."""
        return bool(self.argv) and self.argv[: len(words)] == words

    def may_run(self, words: tuple[str, ...]) -> bool:
        """Whether one of its commands begins with ``words``, or it cannot be told."""
        return self.opaque or any(command[: len(words)] == words for command in self.commands)


def read_command(given: str | list[str]) -> CommandLine:
    """The command that ``given`` is: words as they are passed on, or a line for a shell."""
    if isinstance(given, list):
        return CommandLine((tuple(given),) if given else ())
    if len(given) > LENGTH_LIMIT:
        return CommandLine((), opaque=True)
    lexer = shlex.shlex(given, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace = " \t\r"
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:
        return CommandLine((), opaque=True)
    commands: list[list[str]] = [[]]
    for word in words:
        if word and set(word) <= set(_OPERATORS):
            commands.append([])
        else:
            commands[-1].append(word)
    found = tuple(tuple(command) for command in commands if command)
    # Anything of these outside quotes means more than it says; inside, refusing too much does no harm.
    is_opaque = _WORKED_OUT.search(given) or any(_ASSIGNS.match(words[0]) for words in found)
    return CommandLine(found, opaque=bool(is_opaque))
