"""``python -m tools.image``: the OCI image of the product, made without a daemon, as one file in ``build/image``.

What is in it: packages of Debian that are unpacked and not configured, the wheel, and the libraries that it asks for in
the versions and with the hashes of requirements.lock. No program of the image runs while it is made, so that one for
another architecture takes no emulation, and nobody needs the rights of a container. buildah makes the layers, by
``deploy/image/Containerfile``. ``tools.image_smoke`` plays what was made.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast, get_args

from tools.sbom import PRODUCT, ROOT, Locked, find_needs, read_lock

Architecture: TypeAlias = Literal["amd64", "arm64"]
Form: TypeAlias = Literal["oci", "docker"]

FOLDER: Final = ROOT / "deploy" / "image"
TARGET: Final = ROOT / "build" / "image"
EXTRAS: Final = ("fast", "grpc", "otel", "s3", "webpush")
"""Everything but ``parquet``, whose library alone is as large as the rest."""
EPOCH: Final = 1_580_601_600
"""The time of each file, 2020-02-02, as in the wheel: not when the image was made."""
DEBIAN: Final = "bookworm"
PYTHON: Final = "3.11"
_MARKERS: Final = {
    "python_full_version": "3.11.2",
    "python_version": PYTHON,
    "sys_platform": "linux",
}
"""Of Debian's Python, for which libraries may ask for more than for that of this machine."""
PACKAGES: Final = (
    "base-files",
    "ca-certificates",
    "libstdc++6",
    "netbase",
    "python3",
    "tzdata",
)
"""They bring what Python and compiled libraries need along; there is no shell among them."""
USER: Final = 10001
_MACHINES: Final[Mapping[Architecture, str]] = {"amd64": "x86_64", "arm64": "aarch64"}
SOURCE_ONLY: Final = ("http-ece",)
"""Libraries of pure Python that have published no wheel."""
_PUSHED: Final[Mapping[Form, str]] = {"oci": "oci", "docker": "v2s2"}
_PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
_TAIL: Final = 20
_GLIBC: Final = range(36, 4, -1)
"""The minor versions of glibc 2 whose wheels Debian's 2.36 runs."""
_PASSWD: Final = (
    "root:x:0:0:root:/root:/usr/sbin/nologin\n"
    f"passerelle:x:{USER}:{USER}::/var/lib/passerelle:/usr/sbin/nologin\n"
)
_GROUP: Final = f"root:x:0:\npasserelle:x:{USER}:\n"
_LAUNCHER: Final = """#!{python}
import sys

from passerelle.cli.main import main

sys.argv[0] = "passerelle"
main()
"""


class ImageFault(Exception):
    """The image cannot be made as it is asked for."""


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """What is asked for. ``base`` is an image with Python of its own; without one Debian's packages are unpacked."""

    architecture: Architecture
    wheel: Path
    version: str
    base: str | None = None
    python: str = "/usr/bin/python3"
    extras: tuple[str, ...] = EXTRAS
    form: Form = "oci"

    @property
    def name(self) -> str:
        """What it is called, and its tag."""
        return f"{PRODUCT}:{self.version}-{self.architecture}"

    @property
    def archive(self) -> str:
        """The name of its file."""
        return f"{PRODUCT}-{self.version}-{self.architecture}.tar"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.image", description=__doc__)
    parser.add_argument("--arch", choices=get_args(Architecture), default="amd64")
    parser.add_argument("--base", help="an image with Python 3.11, in place of Debian's packages")
    parser.add_argument(
        "--python", default="/usr/bin/python3", help="where Python is in the base image"
    )
    parser.add_argument("--wheel", type=Path, help="the wheel; without it one is built")
    parser.add_argument(
        "--extras", default=",".join(EXTRAS), help="separated by commas [%(default)s]"
    )
    parser.add_argument(
        "--format", choices=get_args(Form), default="oci", help="docker keeps the HEALTHCHECK"
    )
    parser.add_argument("--to", type=Path, default=TARGET, help="the folder that it is written to")
    said = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="passerelle-image-") as name:
        folder = Path(name)
        try:
            wheel = said.wheel or build_wheel(folder / "dist")
            plan = ImagePlan(
                cast("Architecture", said.arch),
                wheel.resolve(),
                wheel.name.split("-")[1],
                said.base,
                said.python,
                tuple(filter(None, said.extras.split(","))),
                cast("Form", said.format),
            )
            prepare_context(plan, folder / "context")
            said.to.mkdir(parents=True, exist_ok=True)
            made = assemble(plan, folder, said.to)
        except ImageFault as fault:
            print(f"image: {fault}", file=sys.stderr)
            return 1
    print(f"image: {made.relative_to(Path.cwd()) if made.is_relative_to(Path.cwd()) else made}")
    return 0


def build_wheel(folder: Path) -> Path:
    """The wheel of this tree."""
    words = ("-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT))
    run_tool(sys.executable, *words)
    return next(folder.glob("*.whl"))


def prepare_context(plan: ImagePlan, context: Path) -> None:
    """Everything that the Containerfile copies; the same plan gives the same bytes."""
    for name in ("bin", "data", "libraries"):
        (context / name).mkdir(parents=True)
    (context / "data").chmod(0o700)
    launcher = context / "bin" / PRODUCT
    launcher.write_text(_LAUNCHER.format(python=plan.python), "utf-8")
    launcher.chmod(0o755)
    if plan.base is None:
        unpack_debian(plan.architecture, context / "base.tar")
    else:
        run_tool("tar", "-cf", str(context / "base.tar"), "--files-from=/dev/null")
    install_libraries(plan, context)


def unpack_debian(architecture: Architecture, target: Path) -> None:
    """The base as a tar file: packages from where this machine gets its own, with their certificates in one file."""
    with tempfile.TemporaryDirectory(prefix="passerelle-base-") as name:
        own = Path(name)
        (own / "passwd").write_text(_PASSWD, "ascii")
        (own / "group").write_text(_GROUP, "ascii")
        (own / "nsswitch.conf").write_text("hosts: files dns\n", "ascii")
        hooks = [
            *(f"upload {own / name} /etc/{name}" for name in ("passwd", "group", "nsswitch.conf")),
            'mkdir -p "$1/etc/ssl/certs" "$1/etc/passerelle" "$1/usr/lib/ssl"',
            'cat "$1"/usr/share/ca-certificates/mozilla/*.crt >"$1/etc/ssl/certs/ca-certificates.crt"',
            'ln -s /etc/ssl/certs/ca-certificates.crt "$1/usr/lib/ssl/cert.pem"',
            'cd "$1" && rm -rf usr/share/doc usr/share/man usr/share/info var/cache/* var/lib/apt var/log/*',
        ]
        run_tool(
            "mmdebstrap",
            "--variant=extract",
            "--mode=root",
            "--skip=output/dev",
            f"--architectures={architecture}",
            f"--include={','.join(PACKAGES)}",
            *(f"--customize-hook={hook}" for hook in hooks),
            DEBIAN,
            str(target),
            *find_sources(),
            environ={"SOURCE_DATE_EPOCH": f"{EPOCH}"},
        )


def find_sources() -> list[str]:
    """Where this machine has packages of the same Debian from; nothing leaves it to mmdebstrap."""
    for path in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        if path.is_file() and DEBIAN in path.read_text("utf-8"):
            return [str(path)]
    return []


def install_libraries(plan: ImagePlan, context: Path) -> None:
    """The wheel and what it asks for, from wheels for that architecture; modules are compiled for good."""
    target, listed = context / "libraries", context.parent / "requirements.txt"
    locked = read_lock((ROOT / "requirements.lock").read_text("utf-8"))
    machine = _MACHINES[plan.architecture]
    needed = list_needs(plan.extras, machine, locked)
    if unknown := sorted(needed - locked.keys()):
        raise ImageFault(f"{', '.join(unknown)} is not in the lock: is the environment that of it?")
    pinned = {name: _pin(name, locked[name]) for name in sorted(needed)}
    built = [build_pure(pinned.pop(name), context.parent) for name in SOURCE_ONLY if name in pinned]
    lines = [
        *pinned.values(),
        *(f"{one} --hash=sha256:{_digest(one)}" for one in (*built, plan.wheel)),
    ]
    listed.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    tags = [*(f"manylinux_2_{minor}_{machine}" for minor in _GLIBC), f"manylinux2014_{machine}"]
    run_tool(
        *(*_PIP, "install", "--no-deps", "--no-compile", "--require-hashes", "--only-binary=:all:"),
        *("--implementation=cp", f"--python-version={PYTHON}"),
        *(f"--platform={tag}" for tag in [*tags, "any"]),
        *("--target", str(target), "--requirement", str(listed)),
    )
    # Scripts for another place, and where the files of this machine were.
    shutil.rmtree(target / "bin", ignore_errors=True)
    for told in target.glob("*.dist-info/direct_url.json"):
        told.unlink()
    for record in target.glob("*.dist-info/RECORD"):
        kept = [
            line
            for line in record.read_text("utf-8").splitlines(keepends=True)
            if not line.startswith("../../bin/") and "direct_url.json" not in line
        ]
        record.write_text("".join(kept), "utf-8")
    # Sources never change in an image, so that no time of a file decides whether a module is read.
    run_tool(
        *(sys.executable, "-m", "compileall", "-q", "-j", "2", "-o", "0"),
        *("--invalidation-mode", "unchecked-hash", "-s", str(target), "-p", "/opt/passerelle"),
        str(target),
        environ={"PYTHONHASHSEED": "0"},
    )


def list_needs(extras: tuple[str, ...], machine: str, locked: Mapping[str, Locked]) -> set[str]:
    """Names of the libraries that the product needs with Debian's Python on such a machine."""
    there = {**_MARKERS, "platform_machine": machine}
    return set(find_needs((PRODUCT, extras), there, locked).keys() - {PRODUCT})


def build_pure(pinned: str, folder: Path) -> Path:
    """The wheel of a library without compiled parts that has published none, from its source."""
    listed, wheels = folder / "source.txt", folder / "wheels"
    listed.write_text(pinned, "utf-8")
    before = set(wheels.glob("*.whl"))
    run_tool(
        *(*_PIP, "wheel", "--no-deps", "--require-hashes", "--requirement", str(listed)),
        *("--wheel-dir", str(wheels)),
    )
    (made,) = set(wheels.glob("*.whl")) - before
    if not made.name.endswith("-none-any.whl"):
        raise ImageFault(f"{made.name} is for this machine alone")
    return made


def assemble(plan: ImagePlan, folder: Path, to: Path) -> Path:
    """Layers of the context, in one file; nothing stays in a storage."""
    made = to / plan.archive
    made.unlink(missing_ok=True)
    policy = write_policy(folder)
    run_buildah(
        folder,
        *("build", "--isolation=chroot", f"--format={plan.form}", f"--timestamp={EPOCH}"),
        *(f"--arch={plan.architecture}", "--os=linux", "--layers=false"),
        *(f"--signature-policy={policy}", f"--build-arg=VERSION={plan.version}"),
        *(f"--build-arg=REVISION={read_revision()}", f"--build-arg=BASE={plan.base or 'scratch'}"),
        *(f"--file={FOLDER / 'Containerfile'}", f"--tag={plan.name}", str(folder / "context")),
    )
    kind = "oci-archive" if plan.form == "oci" else "docker-archive"
    run_buildah(
        folder,
        *("push", f"--signature-policy={policy}", "--quiet", f"--format={_PUSHED[plan.form]}"),
        *(f"localhost/{plan.name}", f"{kind}:{made}:{plan.name}"),
    )
    return made


def write_policy(folder: Path) -> Path:
    """The file without which buildah reads no image: this one is looked at by its bytes, not by who signed it."""
    policy = folder / "policy.json"
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}', "ascii")
    return policy


def run_buildah(folder: Path, *words: str) -> str:
    """Calls buildah over a storage of its own that needs no overlay."""
    places = (f"--root={folder / 'storage'}", f"--runroot={folder / 'run'}")
    return run_tool("buildah", *places, "--storage-driver=vfs", *words)


def read_revision() -> str:
    """The commit that the tree is at, or nothing outside of a checkout."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"],  # noqa: S607 - git of PATH
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def run_tool(*command: str, environ: Mapping[str, str] | None = None) -> str:
    """What a program prints.

    Raises:
        ImageFault: it is not there, or it failed.
    """
    program = shutil.which(command[0])
    if program is None:
        raise ImageFault(f"{command[0]} is missing: apt install {command[0]}")
    done = subprocess.run(
        [program, *command[1:]],
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-_TAIL:])
        raise ImageFault(f"{Path(command[0]).name} ended with {done.returncode}:\n{said}")
    return done.stdout


def _pin(name: str, locked: Locked) -> str:
    return f"{name}=={locked.version} {' '.join(f'--hash={one}' for one in locked.hashes)}"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
