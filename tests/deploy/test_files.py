"""What ships beside the package, as the linters of its field see it, and against the code."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from fanlog.cli.options import all_options
from fanlog.cli.settings import check_document
from fanlog.errors import ConfigError
from fanlog.release import VERSION
from tests.servers import find_program

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
CONFIGURATIONS = sorted((DEPLOY / "kubernetes").rglob("configmap.yaml"))


def lint(*command: str | Path) -> str:
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def beside_python(name: str) -> Path:
    return Path(sys.executable).with_name(name)


def test_hadolint_has_nothing_to_say_about_the_image() -> None:
    assert not lint(beside_python("hadolint"), DEPLOY / "docker/Dockerfile").strip()


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_kubernetes_takes_the_manifest(path: Path) -> None:
    if path.name == "kustomization.yaml":
        (given,) = documents(path)
        assert all((path.parent / name).is_file() for name in given["resources"])
        assert given["images"] == [{"name": "fanlog", "newTag": VERSION}]
        return
    lint(beside_python("kubernetes-validate"), "--strict", path)


def test_systemd_takes_the_unit_and_finds_it_hardened(tmp_path: Path) -> None:
    analyze = find_program("systemd-analyze", "systemd")
    program = tmp_path / "fanlog"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "fanlog.service"
    text = (DEPLOY / "systemd/fanlog.service").read_text("utf-8")
    unit.write_text(text.replace("/opt/fanlog/bin/fanlog", str(program)))
    assert not lint(analyze, "verify", unit).strip()
    said = lint(analyze, "security", "--offline=true", "--threshold=20", unit)
    found = re.search(r"exposure level for fanlog.service: (\S+)", said)
    assert found is not None
    assert float(found[1]) < 2.0  # 10 is a service without any protection
    # It would hide the boot id, and each start would scan the logs of topics with durability `os`.
    assert not re.search(r"(?m)^ProcSubset=pid", text)


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.parent.name)
def test_the_configuration_of_kubernetes_is_one(path: Path) -> None:
    (given,) = documents(path)
    settings = tomllib.loads(given["data"]["fanlog.toml"])
    assert not [fault for fault in check_document(settings) if isinstance(fault, ConfigError)]


def test_compose_has_one_image_and_every_file_that_it_mounts() -> None:
    (given,) = documents(DEPLOY / "compose.yaml")
    services = given["services"]
    assert {"broker", "edge-1", "edge-2", "prometheus", "grafana"} == set(services)
    for name in ("broker", "edge-1", "edge-2"):
        assert services[name]["image"] == f"fanlog:{VERSION}"
        assert services[name]["read_only"]
    for service in services.values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).exists(), source


def test_each_node_of_a_cluster_has_its_own_id_and_data() -> None:
    (given,) = documents(DEPLOY / "cluster/compose.yaml")
    nodes = {name: one for name, one in given["services"].items() if name != "etcd"}
    assert set(nodes) == {"a", "b", "c"}
    variables = {option.variable for option in all_options().values()}
    for name, node in nodes.items():
        environment = node["environment"]
        assert environment["FANLOG_CLUSTER_NODE_ID"] == name
        assert environment["FANLOG_CLUSTER_ADVERTISE"] == f"{name}:7420"
        assert node["volumes"] == [f"{name}:/data"]
        assert node["image"] == f"fanlog:{VERSION}"
        assert set(environment) - variables == {"FANLOG_KEY_FILE"}
        assert all(port.startswith("127.0.0.1:") for port in node["ports"])


def test_pods_of_a_cluster_are_its_nodes() -> None:
    folder = DEPLOY / "kubernetes/cluster"
    (pods,) = documents(folder / "statefulset.yaml")
    names = {one["metadata"]["name"] for one in documents(folder / "service.yaml")}
    assert pods["spec"]["serviceName"] in names
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    variables = {option.variable for option in all_options().values()}
    given = {one["name"] for one in container["env"]}
    assert given - variables == {"POD_NAME", "FANLOG_KEY_FILE"}
    (config,) = documents(folder / "configmap.yaml")
    cluster = tomllib.loads(config["data"]["fanlog.toml"])["cluster"]
    assert cluster["replicas"] == pods["spec"]["replicas"]
    (budget,) = documents(folder / "poddisruptionbudget.yaml")
    assert cluster["replicas"] - budget["spec"]["maxUnavailable"] >= cluster["min_in_sync"]


def test_what_the_image_needs_is_not_ignored() -> None:
    image = (DEPLOY / "docker/Dockerfile").read_text("utf-8")
    kept = re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text("utf-8"), re.MULTILINE)
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", image, re.MULTILINE)
    assert sorted(name for line in copied for name in line.split()) == sorted(kept)
    assert f"fanlog:{VERSION}" in image
