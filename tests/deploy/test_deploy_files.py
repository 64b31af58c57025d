"""The files under ``deploy/``: rendered by Helm, checked against Kubernetes' schemas, read by the daemon."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from helm_python.chart import Chart, lint
from helm_python.errors import HelmError

from specctl.metrics import names
from specctl.targets.models import TargetsSettings
from tools.deploy_files import CHART, DEPLOY, ROOT, derived, rendered

KUBERNETES = "1.33"
OPERATOR_KINDS = {"PodMonitor", "PrometheusRule"}
EVERYTHING: dict[str, Any] = {
    "token": {"value": "0123456789abcdef"},
    "networkPolicy": {
        "enabled": True,
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
    },
    "metrics": {
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "rules": {"enabled": True},
    },
    "policies": {"ours.yaml": (ROOT / "policies" / "latency.yaml").read_text(encoding="utf-8")},
    "targets": {
        "policies": [
            {"match": {"tier": "batch"}, "policy": "throughput"},
            {"match": {}, "policy": "ours.yaml"},
        ],
        "targets": [
            {"kubernetes": {"selector": "app=vllm", "port": "http"}},
            {"kubernetes": {"namespace": "other", "selector": "app=sglang", "port": 30000}},
            {"url": "http://10.0.0.7:8200", "labels": {"tier": "batch"}},
            {"dns": "vllm.serving.svc:8000"},
        ],
    },
    "auditLog": {"existingClaim": "audit"},
    "dryRun": True,
    "podLabels": {"team": "serving"},
    "podAnnotations": {"note": "x"},
    "extraArgs": ["--log-level=debug"],
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"key": "cpu", "operator": "Exists"}],
}
VALUES = {
    "default": {},
    "everything": EVERYTHING,
    "existing-secret": {"token": {"existingSecret": "mine"}, "auditLog": {"enabled": False}},
    "no-cluster-rights": {"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "theirs"}},
}


def manifests(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(rendered(values)) if one is not None]


def named(values: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [one for one in manifests(values) if one["kind"] == kind]


def daemon_container(values: dict[str, Any]) -> dict[str, Any]:
    [deployment] = named(values, "Deployment")
    container: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return container


def test_derived_files_are_current() -> None:
    for path, text in derived().items():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run python -m tools.deploy_files"


def test_chart_passes_lint() -> None:
    result = lint(str(CHART), strict=True)
    assert not result["errors"]
    assert [one["error"] for one in result["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_manifests_match_the_schemas(values: dict[str, Any]) -> None:
    for manifest in manifests(values):
        if manifest["kind"] not in OPERATOR_KINDS:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_daemon_reads_the_targets_file(values: dict[str, Any]) -> None:
    [config] = named(values, "ConfigMap")
    settings = TargetsSettings.model_validate(yaml.safe_load(config["data"]["targets.yaml"]))
    assert all(
        one.kubernetes is None or one.kubernetes.namespace in ("serving", "other") for one in settings.targets
    )


def test_pods_are_listed_in_every_namespace_of_the_targets() -> None:
    assert {one["metadata"]["namespace"] for one in named(EVERYTHING, "Role")} == {"serving", "other"}
    bindings = named(EVERYTHING, "RoleBinding")
    assert {one["subjects"][0]["namespace"] for one in bindings} == {"serving"}


def test_no_api_token_without_pods_to_list() -> None:
    values = {"targets": {"policies": [], "targets": [{"url": "http://10.0.0.7:8000"}]}}
    [deployment] = named(values, "Deployment")
    assert deployment["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert not named(values, "Role")


def test_network_policy_opens_the_ports_of_the_targets() -> None:
    [policy] = named(EVERYTHING, "NetworkPolicy")
    ports = [port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]]
    assert ports == [53, 53, 443, 6443, "http", 30000, 8200, 8000]


def test_token_comes_from_a_secret() -> None:
    assert "--token-file=/etc/specctl-token/token" in daemon_container(EVERYTHING)["args"]
    assert not any("token-file" in one for one in daemon_container({})["args"])
    assert not named(VALUES["existing-secret"], "Secret")


REFUSED: dict[str, dict[str, Any]] = {
    "unknown key": {"polices": {}},
    "two sources in one target": {
        "targets": {"policies": [], "targets": [{"url": "http://a:1", "dns": "a:1"}]},
    },
    "short token": {"token": {"value": "short"}},
    "two tokens": {"token": {"value": "0123456789abcdef", "existingSecret": "mine"}},
    "no target": {"targets": {"policies": [], "targets": []}},
    "policy without .yaml": {"policies": {"ours": "kind: off"}},
}


@pytest.mark.parametrize("values", REFUSED.values(), ids=REFUSED)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(HelmError):
        Chart.load(CHART).validate_schema(values)


def test_sidecar_is_a_sidecar() -> None:
    patch = yaml.safe_load((DEPLOY / "kustomize" / "sidecar" / "sidecar.yaml").read_text(encoding="utf-8"))
    [container] = patch["spec"]["template"]["spec"]["initContainers"]
    assert container["restartPolicy"] == "Always"


def test_plugin_pod_matches_the_schema() -> None:
    pod = yaml.safe_load((DEPLOY / "containers" / "pod-with-plugin.yaml").read_text(encoding="utf-8"))
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def test_compose_mounts_files_that_are_there() -> None:
    folder = DEPLOY / "compose"
    compose = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source.startswith("${") or (folder / source).exists(), source


def test_unit_runs_the_command(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "specctl-autotune.service").read_text(encoding="utf-8")
    [start] = [line for line in text.splitlines() if line.startswith("ExecStart=")]
    assert start.startswith("ExecStart=/opt/specctl/bin/specctl autotune ")
    unit = tmp_path / "specctl-autotune.service"
    unit.write_text(text.replace("/opt/specctl/bin/specctl", "/bin/true"), encoding="utf-8")
    try:
        done = subprocess.run(
            ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60
        )
    except FileNotFoundError:
        pytest.skip("no systemd-analyze")
    assert done.returncode == 0, done.stderr


def _specctl_names(text: str) -> set[str]:
    return {re.sub(r"_(sum|count|bucket)$", "", name) for name in re.findall(r"\bspecctl_[a-z_]+", text)}


@pytest.mark.parametrize("file", ["dashboard.json", "rules.yaml"])
def test_metrics_exist(file: str) -> None:
    known = {one.name for one in vars(names).values() if isinstance(one, names.Metric)}
    assert _specctl_names((DEPLOY / "observability" / file).read_text(encoding="utf-8")) <= known


def test_every_alert_has_a_runbook() -> None:
    rules = yaml.safe_load((DEPLOY / "observability" / "rules.yaml").read_text(encoding="utf-8"))
    runbook = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    alerts = [rule for group in rules["groups"] for rule in group["rules"] if "alert" in rule]
    for rule in alerts:
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert f"\n## {rule['alert']}\n" in runbook
