"""The files that start the service: they are well-formed, agree with the repository, and give nothing away."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

Object = dict[str, Any]

BIN = Path(sys.executable).parent


def run(*command: str | Path) -> None:
    """A linter: what it says is why the test fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_passes_its_linter(deploy: Path) -> None:
    run(BIN / "hadolint", deploy / "Dockerfile")


def test_yaml_passes_its_linter(deploy: Path) -> None:
    here = Path(__file__).parent
    run(BIN / "yamllint", "--strict", "--config-file", deploy / ".yamllint.yaml", deploy, here)


def test_compose_keeps_to_its_schema(any_compose: Object, tmp_path: Path) -> None:
    file = tmp_path / "compose.json"
    file.write_text(json.dumps(any_compose), encoding="utf-8")
    run(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", file)


def test_the_image_is_fixed_and_without_rights(deploy: Path) -> None:
    text = (deploy / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^ARG PYTHON=3\.\d+-slim-\w+$", text, re.MULTILINE)
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", text, re.MULTILINE)
    fixed = "python:${PYTHON}${BASE_DIGEST}"
    assert stages == [(fixed, "build"), ("build", "build-cuda"), (fixed, "base"), ("base", "cuda"), ("base", "")]
    for line in re.findall(r"pip install (.*?)(?: \\|$)", text, re.MULTILINE):
        assert "--require-hashes" in line or "--no-index" in line, line
    last = text.partition(" AS base\n")[2]  # what both images are made of
    assert re.findall(r"^USER (.*)", last, re.MULTILINE) == ["${UID}:${UID}"]
    (program,) = re.findall(r"^ENTRYPOINT (.*)", last, re.MULTILINE)
    assert json.loads(program) == ["tunewright"]  # the exec form
    assert "TUNEWRIGHT_HOME=/data" in last
    assert "/livez" in last
    assert not re.search("^RUN", last.partition("\nFROM ")[2], re.MULTILINE)  # as a user without rights


def test_the_image_is_built_from_what_the_wheel_needs(root: Path, deploy: Path) -> None:
    kept = re.findall(r"^!(.*)", (deploy / "Dockerfile.dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    folders = {path.parent.name for path in root.glob("[a-z]*/__init__.py")} - {"bench"}
    assert folders <= set(kept)
    assert all((root / name).exists() for name in kept)


def ours(compose: Object) -> dict[str, Object]:
    return {name: s for name, s in compose["services"].items() if s["image"].startswith("${TUNEWRIGHT_")}


def test_compose_runs_what_is_built_and_confines_it(any_compose: Object, version: str) -> None:
    assert ours(any_compose).keys() in ({"migrate", "api", "ray-head", "ray-worker", "tuner"}, {"ray-worker"})
    for service in ours(any_compose).values():
        if "target" in service["build"]:
            assert service["build"]["target"] == "cuda"
            assert service["image"] == f"${{TUNEWRIGHT_CUDA_IMAGE:-tunewright:{version}-cuda}}"
            (device,) = service["deploy"]["resources"]["reservations"]["devices"]
            assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        else:
            assert service["image"] == f"${{TUNEWRIGHT_IMAGE:-tunewright:{version}}}"
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in service
        assert {entry.partition(":")[0] for entry in service["tmpfs"]} == {"/tmp", "/data"}


NAMES_OF_FILES = {"GF_SECURITY_ADMIN_PASSWORD__FILE", "TUNEWRIGHT_RELEASE_KEY"}


def test_compose_has_no_password_of_its_own(any_compose: Object, deploy: Path) -> None:
    for service in any_compose["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN|SECRET|KEY", name) and name not in NAMES_OF_FILES:
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), name  # compose stops without it
    for secret in any_compose.get("secrets", {}).values():
        assert not (deploy / secret["file"]).exists()


def test_the_release_key_outlives_its_containers(compose: Object, deploy: Path) -> None:
    """It is in a volume that one service reads, another one makes it in, and their user owns."""
    services, volumes = compose["services"], compose["volumes"]
    folder = str(Path(services["api"]["environment"]["TUNEWRIGHT_RELEASE_KEY"]).parent)
    mounts = {name: service["volumes"][0].split(":") for name, service in ours(compose).items() if "volumes" in service}
    assert mounts == {"migrate": ["keys", folder], "api": ["keys", folder, "ro"]}
    assert "keys" in volumes
    assert not any(entry.startswith(folder) for entry in services["api"]["tmpfs"])
    owned = re.findall(
        r"install --directory --owner=tunewright .*--mode=0700 (.*)", (deploy / "Dockerfile").read_text()
    )
    assert [text.split() for text in owned] == [["/data", folder]]


def test_compose_waits_for_what_is_needed(compose: Object) -> None:
    services = compose["services"]
    assert services["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    for name in ("api", "tuner"):
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    for name in ("ray-worker", "tuner"):
        assert services[name]["depends_on"]["ray-head"]["condition"] == "service_healthy"
    waited_for = {
        other
        for service in services.values()
        for other, how in service.get("depends_on", {}).items()
        if how["condition"] == "service_healthy"
    }
    for name in waited_for - {"api"}:  # whose check is the image's
        assert services[name]["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")


def test_ray_has_its_token_and_no_dashboard(any_compose: Object) -> None:
    for name in {"ray-head", "ray-worker", "tuner"} & any_compose["services"].keys():
        environment = any_compose["services"][name]["environment"]
        assert environment["RAY_AUTH_MODE"] == "token"
        assert environment["RAY_AUTH_TOKEN"].startswith("${RAY_AUTH_TOKEN:?")
        if name == "ray-head":
            assert "--include-dashboard=false" in any_compose["services"][name]["command"]
    for name, service in any_compose["services"].items():
        if name.startswith("ray"):
            assert "ports" not in service


def test_nothing_listens_beyond_loopback_unasked(any_compose: Object) -> None:
    for service in any_compose["services"].values():
        for port in service.get("ports", []):
            assert port.startswith(("127.0.0.1:", "${TUNEWRIGHT_LISTEN:-127.0.0.1:"))


def test_only_those_who_need_it_reach_the_database(compose: Object) -> None:
    reach = {name for name, service in compose["services"].items() if "database" in service.get("networks", [])}
    assert reach == {"postgres", "migrate", "api", "tuner"}
    assert compose["networks"]["database"] == {"internal": True}


def options(service: Object) -> set[str]:
    """Of the `ray start` in the command of a service."""
    return set(re.findall(r"--[-a-z]+=[^\s;]+", " ".join(service["command"])))


def test_machines_reach_each_other(machines: Object, worker: Object, compose: Object) -> None:
    """Each node tells the others the address of its machine, on whose own network it is."""
    first, other = machines["services"], worker["services"]["ray-worker"]
    for service in (first["ray-head"], first["ray-worker"], first["tuner"], other):
        assert service["network_mode"] == "host" and "networks" not in service
        assert any(o.startswith("--node-ip-address=${TUNEWRIGHT_ADDRESS") for o in options(service))
    assert "--address=${TUNEWRIGHT_ADDRESS}:6379" in options(first["ray-worker"]) & options(first["tuner"])
    assert re.search(r"--address=\$\{TUNEWRIGHT_HEAD:\?[^}]+\}:6379", " ".join(other["command"]))
    assert "--ray-address ${TUNEWRIGHT_ADDRESS}:6379" in first["tuner"]["command"][0]
    assert other["environment"] == compose["services"]["ray-worker"]["environment"] | {
        "RAY_AUTH_TOKEN": other["environment"]["RAY_AUTH_TOKEN"]
    }
    for name in ("ray-head", "ray-worker", "tuner"):  # else they are started as on a machine alone
        more = {o for o in options(first[name]) if not re.match("--(node-ip-)?address|--ray-address", o)}
        alone = {o for o in options(compose["services"][name]) if not o.startswith("--address")}
        assert more == alone
    kept = ("tmpfs", "shm_size", "read_only", "cap_drop", "security_opt", "pids_limit", "init", "stop_grace_period")
    assert {k: other[k] for k in kept} == {k: compose["services"]["ray-worker"][k] for k in kept}


def test_the_tuner_of_the_first_machine_reaches_the_database(machines: Object) -> None:
    (port,) = machines["services"]["postgres"]["ports"]
    assert port.startswith("127.0.0.1:")
    published = port.removeprefix("127.0.0.1:").rpartition(":")[0]
    assert f"@127.0.0.1:{published}/" in machines["services"]["tuner"]["environment"]["TUNEWRIGHT_DB"]
    inside = [name for name, network in machines["networks"].items() if (network or {}).get("internal")]
    assert set(machines["services"]["postgres"]["networks"]) - set(inside)  # ports of no others are published


def test_only_monitoring_is_optional(compose: Object) -> None:
    optional = {name for name, service in compose["services"].items() if service.get("profiles")}
    assert optional == {"prometheus", "grafana"}


def test_grafana_finds_its_board_and_its_data(compose: Object, deploy: Path) -> None:
    volumes = compose["services"]["grafana"]["volumes"]
    board = next(volume for volume in volumes if "tunewright.json" in volume)
    provider = yaml.safe_load((deploy / "grafana/provisioning/dashboards/tunewright.yaml").read_text(encoding="utf-8"))
    assert board.split(":")[1].startswith(provider["providers"][0]["options"]["path"] + "/")
    sources = yaml.safe_load((deploy / "grafana/provisioning/datasources/prometheus.yaml").read_text(encoding="utf-8"))
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"


def test_prometheus_asks_a_service_that_answers_to_that_name(compose: Object, deploy: Path) -> None:
    config = yaml.safe_load((deploy / "prometheus" / "prometheus.yaml").read_text(encoding="utf-8"))
    (scrape,) = config["scrape_configs"]
    host, _, port = scrape["static_configs"][0]["targets"][0].partition(":")
    command = compose["services"][host]["command"]
    assert f"--allow-host={host}" in command
    assert f"--port={port}" in command
    secret = Path(scrape["authorization"]["credentials_file"]).name
    assert secret in compose["services"]["prometheus"]["secrets"]


@pytest.mark.parametrize(
    "name",
    [
        "compose.yaml",
        "compose.worker.yaml",
        "compose.gpu.yaml",
        "Dockerfile",
        "prometheus/rules.yaml",
        "helm/tunewright/values.yaml",
    ],
)
def test_nothing_is_left_to_the_latest(deploy: Path, name: str) -> None:
    assert ":latest" not in (deploy / name).read_text(encoding="utf-8")
