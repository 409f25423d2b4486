"""A file of members: complete, or the error names the damaged member."""

from __future__ import annotations

import io
import tarfile

import pytest

from passerelle.core.errors import InvalidInput
from passerelle.store.exports.member_file import MANIFEST, MemberFile, MemberWriter, pack_header

MEMBERS = {"head": b"{}", "one/empty": b"", "two/block": b"x" * 512, "three/long": b"abc" * 700}


def write(members: dict[str, bytes]) -> bytes:
    file, lines = io.BytesIO(), io.BytesIO()
    writer = MemberWriter(file, lines)
    for name, content in members.items():
        writer.add(name, content)
    writer.finish()
    return file.getvalue()


def check(content: bytes) -> list[str]:
    return [member.name for member, _ in MemberFile(io.BytesIO(content)).check()]


def test_members_are_read_as_they_were_written_here_and_by_every_tool() -> None:
    content = write(MEMBERS)
    assert check(content) == [*MEMBERS]
    file = MemberFile(io.BytesIO(content))
    read = {member.name: file.read(member) for member in file.list_members()}
    manifest = read.pop(MANIFEST)
    assert read == MEMBERS
    assert manifest.count(b"\n") == len(MEMBERS)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert tar.getnames() == [*MEMBERS, MANIFEST]


@pytest.mark.requirement("EXP-2")
def test_a_truncated_file_is_refused() -> None:
    content = write(MEMBERS)
    for end in range(len(content)):
        with pytest.raises(InvalidInput) as refused:
            check(content[:end])
        assert refused.value.field in {"file", MANIFEST, *MEMBERS}, end


@pytest.mark.requirement("EXP-2")
def test_a_file_with_a_flipped_bit_is_refused() -> None:
    content = write(MEMBERS)
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        with pytest.raises(InvalidInput):
            check(bytes(changed))


@pytest.mark.requirement("EXP-2")
def test_the_member_that_was_changed_is_named() -> None:
    content = write(MEMBERS)
    with pytest.raises(InvalidInput, match=r"^three/long: is not what the manifest says"):
        check(content.replace(b"abcabc", b"abcabd", 1))


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(InvalidInput, match="file: does not end after its manifest"):
        check(write(MEMBERS) + b"x")


def test_a_member_that_only_the_manifest_names_is_missed() -> None:
    first, second = write({"a": b"1"}), write({"a": b"1", "b": b"2"})
    manifest = second[second.index(pack_header(MANIFEST, 2 * 68)) :]
    with pytest.raises(InvalidInput, match=f"{MANIFEST}: names a member that is not there"):
        check(first[: first.index(pack_header(MANIFEST, 68))] + manifest)


@pytest.mark.parametrize(("size", "sha256"), [(3, None), (1, None), (2, "0" * 64)])
def test_content_that_does_not_match_its_size_or_hash_is_refused(
    size: int, sha256: str | None
) -> None:
    writer = MemberWriter(io.BytesIO(), io.BytesIO())
    with pytest.raises(ValueError, match="a "), writer.open("a", size, sha256) as put:
        put(b"12")
