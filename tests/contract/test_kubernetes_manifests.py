"""Manifests of ``deploy/kubernetes``: valid by the schemas of Kubernetes, and consistent with each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from passerelle.gateway.settings.layers import Sources
from passerelle.gateway.settings.source import read_settings

FILE: Final = Path(__file__).parents[2] / "deploy" / "kubernetes" / "passerelle.yaml"
VERSIONS: Final = ("1.30", "1.37")
"""The oldest version with all used features, and the newest with available schemas."""
STOP_S: Final = 10
"""Longest duration of a stop, as docs/operate states."""

Manifest = dict[str, Any]


def read_manifests() -> dict[str, Manifest]:
    """By kind; there is one of each."""
    found = cast("list[Manifest]", list(yaml.safe_load_all(FILE.read_text("utf-8"))))
    return {one["kind"]: one for one in found}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", sorted(read_manifests()))
def test_manifest_is_valid(kind: str, version: str) -> None:
    kubernetes_validate.validate(read_manifests()[kind], version, strict=True)  # pyright: ignore[reportUnknownMemberType]


def test_a_member_that_kubernetes_does_not_have_is_noticed() -> None:
    deployment = read_manifests()["Deployment"]
    deployment["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
    with pytest.raises(Exception, match="livenessProb"):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)  # pyright: ignore[reportUnknownMemberType]


def test_all_manifests_select_the_same_pods() -> None:
    manifests = read_manifests()
    template = manifests["Deployment"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert manifests["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert manifests["Service"]["spec"]["selector"] == labels
    assert manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert (
        manifests["PodDisruptionBudget"]["spec"]["minAvailable"]
        < manifests["Deployment"]["spec"]["replicas"]
    )
    (container,) = template["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    asked = {
        container[probe]["httpGet"]["port"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert asked == {manifests["Service"]["spec"]["ports"][0]["targetPort"]} <= ports


def test_pod_has_enough_time_to_stop() -> None:
    pod = read_manifests()["Deployment"]["spec"]["template"]["spec"]
    drained = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > drained + STOP_S


def test_pod_has_no_needless_privileges() -> None:
    pod = read_manifests()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    written = {
        mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")
    }
    assert written == {"/var/lib/passerelle", "/tmp"}  # noqa: S108 - inside of a pod


def test_the_gateway_reads_the_configuration_of_the_manifest(tmp_path: Path) -> None:
    manifests = read_manifests()
    config = tmp_path / "passerelle.yaml"
    config.write_text(manifests["ConfigMap"]["data"][config.name], "utf-8")
    (container,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    environ = {one["name"]: one["value"] for one in container["env"]}
    environ["PASSERELLE_SECRET_KEY"] = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlY3I="
    reading = read_settings(Sources(config=config, environ=environ, folder=tmp_path))
    assert reading.settings is not None, reading
    assert reading.settings.host == "0.0.0.0"  # noqa: S104 - inside of a pod
