"""A stream in memory with the rules of the stored one, which tests can damage."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from passerelle.core.event_chain import extend_chain, start_chain
from passerelle.core.packed_events import NO_HEAD, SEPARATOR, pack_copy
from passerelle.core.ports.log import Entry, Head
from passerelle.delegation.projections import copy_event
from passerelle.protocol.cursor import Cursor


def envelope(sequence: int, event_id: str, kind: str, task: str | None) -> bytes:
    """An envelope as the store keeps it: the sequence first, the payload last."""
    named = f',"taskId":"{task}"' if task else ""
    text = f'{{"sequence":{sequence},"type":"{kind}","eventId":"{event_id}"{named},"payload":{{}}}}'
    return text.encode()


@dataclass
class History:
    """One stream: appended to, trimmed, cut short, recreated."""

    epoch: str = "00000001"
    entries: list[Entry] = field(default_factory=list[Entry])
    first: int = 1
    top: int = 0
    chain: str = ""
    exists: bool = True
    minted: int = 0

    def __post_init__(self) -> None:
        self.chain = start_chain(self.epoch)

    @property
    def head(self) -> Head | None:
        return Head(self.epoch, self.top, self.chain, self.first) if self.exists else None

    @property
    def end(self) -> Cursor:
        return Cursor(self.epoch, self.top, self.chain)

    def append(self, count: int = 1, kind: str = "run.progress", task: str | None = None) -> bytes:
        """Adds events; returns the hint that the store would publish."""
        previous, added = self.chain, list[Entry]()
        for _ in range(count):
            self.minted += 1
            self.top += 1
            event_id = f"ev_{self.minted}"
            data = envelope(self.top, event_id, kind, task)
            added.append(Entry(self.top, event_id, kind, self.chain, data))
            self.chain = extend_chain(self.chain, event_id)
        self.entries.extend(added)
        first_line = f"e {added[0].sequence}-{self.top}.{previous}.{self.chain}\n".encode()
        return first_line + SEPARATOR.join(
            (*NO_HEAD, *(pack_copy(copy_event(entry)) for entry in added), b"")
        )

    def page(self, after: int, limit: int = 256) -> list[Entry]:
        return [entry for entry in self.entries if entry.sequence > after][:limit]

    def at(self, sequence: int) -> Cursor:
        """The cursor after ``sequence``, which must be held or be the beginning or the end."""
        if sequence == self.top:
            return self.end
        following = next(entry for entry in self.entries if entry.sequence == sequence + 1)
        return Cursor(self.epoch, sequence, following.previous)

    def trim(self, up_to: int) -> None:
        """Retention: the head remembers where the stream begins now."""
        self.entries = [entry for entry in self.entries if entry.sequence > up_to]
        self.first = max(self.first, up_to + 1)

    def lose_tail(self, count: int) -> None:
        """A failover that lost acknowledged writes: sequences will be used again."""
        kept = [entry for entry in self.entries if entry.sequence <= self.top - count]
        lost = [entry for entry in self.entries if entry.sequence > self.top - count]
        if lost:
            self.chain = lost[0].previous
            self.top = lost[0].sequence - 1
        self.entries = kept

    def drop(self, sequence: int) -> None:
        """Damage: an entry is missing without a trim."""
        self.entries = [entry for entry in self.entries if entry.sequence != sequence]

    def flush(self) -> None:
        """Everything is gone, head included."""
        self.entries, self.exists = [], False

    def recreate(self, epoch: str) -> None:
        """A new life of the stream, under another epoch."""
        fresh = History(epoch)
        self.epoch, self.chain, self.top, self.first = epoch, fresh.chain, 0, 1
        self.entries, self.exists = [], True


def renamed(entry: Entry, event_id: str) -> Entry:
    """The entry with another event id, as if it had been overwritten."""
    return replace(entry, event_id=event_id)
