"""``python -m tools.sbom FILE``: the bill of materials of a release, CycloneDX 1.6 as JSON.

It has what the product asks for, directly and by what that asks for, in the versions and with the hashes of
requirements.lock; ``scope`` is ``optional`` for what an extra alone brings. Tools of the tests are not in it. The same
tree gives the same bytes.
"""

# The classes of the library come out of a decorator that pyright takes for a union; mypy knows them.
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parent.parent
PRODUCT: Final = "passerelle"
EXTRAS: Final = ("fast", "grpc", "otel", "parquet", "s3", "webpush")
_LOCKED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
_HASH: Final = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
_AT: Final = datetime(2020, 2, 2, tzinfo=UTC)
"""Not when it was made, which would be in the bytes; the time that the builder gives files."""


@dataclass(frozen=True, slots=True)
class Locked:
    """One line of the lock."""

    version: str
    hashes: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.sbom", description=__doc__)
    parser.add_argument("file", type=Path)
    file: Path = parser.parse_args(arguments).file
    bom = make_bom((ROOT / "requirements.lock").read_text("utf-8"))
    file.write_text(render(bom), "utf-8")
    print(f"sbom: {len(bom.components)} components")
    return 0


def read_lock(text: str) -> dict[str, Locked]:
    """The lock by canonical names."""
    return {
        canonicalize_name(name): Locked(version, tuple(_HASH.findall(rest)))
        for name, version, rest in _LOCKED.findall(text)
    }


def make_bom(lock: str) -> Bom:
    """The bill of the product as it is installed here.

    Raises:
        LookupError: something that is asked for is not in the lock.
    """
    locked = read_lock(lock)
    required = find_needs((PRODUCT, ()))
    every = find_needs((PRODUCT, EXTRAS))
    product = _describe_product(lock)
    bom = Bom(serial_number=product[1], metadata=BomMetaData(component=product[0], timestamp=_AT))
    made = {PRODUCT: product[0]}
    for name in sorted(every.keys() - {PRODUCT}):
        if name not in locked:
            raise LookupError(f"{name} is not in the lock")
        scope = ComponentScope.REQUIRED if name in required else ComponentScope.OPTIONAL
        made[name] = _describe(name, locked[name], scope)
        bom.components.add(made[name])
    for name, needs in every.items():
        bom.register_dependency(made[name], [made[other] for other in sorted(needs)])
    return bom


def render(bom: Bom) -> str:
    """The text of a bill."""
    return f"{JsonV1Dot6(bom).output_as_string(indent=2)}\n"


def find_needs(
    root: tuple[str, tuple[str, ...]],
    elsewhere: Mapping[str, str] | None = None,
    known: Collection[str] = (),
) -> dict[str, set[str]]:
    """What each installed distribution asks for here, from a first one with its extras on.

    ``elsewhere`` are values of markers of another machine. What only that one needs is not installed here: it counts
    if it is ``known``, and asks for nothing further.
    """
    found: dict[str, set[str]] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(root[0], extra) for extra in ("", *root[1])]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        needs = found.setdefault(name, set())
        for need in _list_needs(name, extra, elsewhere or {}):
            other = canonicalize_name(need.name)
            if not _is_installed(other) and other not in known:
                continue
            if other != name:
                needs.add(other)
            waiting += [(other, inner) for inner in ("", *need.extras)]
    return found


def _list_needs(name: str, extra: str, elsewhere: Mapping[str, str]) -> Iterator[Requirement]:
    if not _is_installed(name):
        return
    for text in distribution(name).requires or []:
        need = Requirement(text)
        if need.marker is None or need.marker.evaluate({**elsewhere, "extra": extra}):
            yield need


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _describe_product(lock: str) -> tuple[Component, uuid.UUID]:
    version = distribution(PRODUCT).version
    digest = hashlib.sha256(f"{PRODUCT} {version}\n{lock}".encode()).hexdigest()
    component = Component(
        name=PRODUCT,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=PRODUCT,
        purl=PackageURL("pypi", None, PRODUCT, version),
        licenses=[DisjunctiveLicense(id="Apache-2.0")],
    )
    return component, uuid.uuid5(uuid.NAMESPACE_URL, f"urn:sha256:{digest}")


def _describe(name: str, locked: Locked, scope: ComponentScope) -> Component:
    purl = PackageURL("pypi", None, name, locked.version)
    hashes = [
        HashType(alg=HashAlgorithm.SHA_256, content=one.removeprefix("sha256:"))
        for one in locked.hashes
    ]
    return Component(
        name=name,
        version=locked.version,
        bom_ref=name,
        scope=scope,
        purl=purl,
        licenses=_find_license(name),
        external_references=[
            # Where its files are is the choice of who installs them: the name stands in place of an address.
            ExternalReference(
                type=ExternalReferenceType.DISTRIBUTION, url=XsUri(str(purl)), hashes=hashes
            )
        ],
    )


def _find_license(name: str) -> list[DisjunctiveLicense]:
    """What the distribution says of itself, in one line; nothing where it says none."""
    told = distribution(name).metadata
    said = [*(told.get_all("License-Expression") or []), *(told.get_all("License") or []), ""]
    text = str(said[0]).strip()
    if not text or "\n" in text:
        every = [str(one) for one in told.get_all("Classifier") or []]
        classes = [one for one in every if one.startswith("License ::")]
        text = classes[0].rpartition(" :: ")[2] if classes else ""
    return [DisjunctiveLicense(name=text)] if text else []


if __name__ == "__main__":
    sys.exit(main())
