"""The Helm chart: its values, and what it comes to.

What it comes to was rendered by Helm and is kept in tests/golden/chart_*.yaml, under a digest of the chart: a chart
that changed without them fails. They are checked here for what must hold whatever the values. Helm itself is in the
package helm-python-sdk, at 75 MB no dependency of the tests; with it they are rendered anew and compared, and written
with `--update-golden`:

    pip install --target FOLDER helm-python-sdk
    PYTHONPATH=FOLDER ./dev test tests/deploy/test_chart.py --update-golden
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

Object = dict[str, Any]

HERE = Path(__file__).parent
CHART = HERE.parents[1] / "deploy" / "helm" / "tunewright"
GOLDEN = HERE.parent / "golden"
VALUES: dict[str, Object] = yaml.safe_load((HERE / "chart_values.yaml").read_text(encoding="utf-8"))
DEFAULTS: Object = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA: Object = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))


def merged(defaults: Object, given: Object) -> Object:
    both = {
        key: merged(defaults[key], value) if isinstance(value, dict) and isinstance(defaults.get(key), dict) else value
        for key, value in given.items()
    }
    return {**defaults, **both}


def digest() -> str:
    """Of everything that the rendering depends on."""
    found = hashlib.sha256((HERE / "chart_values.yaml").read_bytes())
    for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
        found.update(path.relative_to(CHART).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def render(values: Object) -> list[Object]:
    """What Helm makes of the chart: documents by kind and name."""
    helm = importlib.import_module("helm_python")
    with helm.Chart.load(str(CHART)) as chart:
        texts = chart.render(values=values, name="release", namespace="tuning")
    documents = [d for name, text in texts.items() if name.endswith(".yaml") for d in yaml.safe_load_all(text) if d]
    return sorted(documents, key=lambda document: (document["kind"], document["metadata"]["name"]))


@pytest.mark.parametrize("name", VALUES)
def test_it_is_what_helm_rendered_from_this_chart(name: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"chart_{name}.yaml"
    if importlib.util.find_spec("helm_python") is not None:
        body = yaml.safe_dump_all(render(VALUES[name]), sort_keys=False, width=1000)
        text = f"# Rendered by Helm from the chart {digest()}\n{body}"
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text
    line = path.read_text(encoding="utf-8").partition("\n")[0]
    assert line.split()[-1] == digest(), "the chart changed: render it anew, see the head of tests/deploy/test_chart.py"


@pytest.mark.parametrize("name", VALUES)
def test_values_keep_to_the_schema(name: str) -> None:
    jsonschema.validate(merged(DEFAULTS, VALUES[name]), SCHEMA, jsonschema.Draft7Validator)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "non-empty"),  # no database
        ({"database": {"url": "mysql://db/x"}}, "does not match"),
        ({"database": {"url": "postgresql://db/x"}, "tunner": {}}, "unexpected"),
        ({"database": {"url": "postgresql://db/x"}, "api": {"replicas": 0}}, "less than"),
        ({"database": {"url": "postgresql://db/x"}, "tuner": {"pool": "celery"}}, "not one of"),
        ({"database": {"url": "postgresql://db/x"}, "podSecurityContext": {"runAsNonRoot": False}}, "expected"),
        ({"database": {"url": "postgresql://db/x"}, "image": {"digest": "latest"}}, "does not match"),
    ],
)
def test_wrong_values_are_refused(given: Object, said: str) -> None:
    with pytest.raises(jsonschema.ValidationError, match=said):
        jsonschema.validate(merged(DEFAULTS, given), SCHEMA, jsonschema.Draft7Validator)


def test_templates_use_values_that_are_there() -> None:
    used = set()
    for path in (CHART / "templates").iterdir():
        used |= set(re.findall(r"\.Values((?:\.\w+)+)", path.read_text(encoding="utf-8")))
    for dotted in used:
        value: Any = DEFAULTS
        for word in dotted.split(".")[1:]:
            assert word in value, f".Values{dotted}"
            value = value[word]


def test_versions_agree(version: str, ray_version: str) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == version
    assert DEFAULTS["ray"]["version"] == ray_version


def test_rules_and_board_are_those_of_the_folders_above(deploy: Path) -> None:
    assert (CHART / "files" / "rules.yaml").resolve() == (deploy / "prometheus" / "rules.yaml").resolve()
    assert (CHART / "files" / "tunewright.json").resolve() == (deploy / "grafana" / "tunewright.json").resolve()


def of_kind(documents: list[Object], kind: str, name: str = "") -> list[Object]:
    return [d for d in documents if d["kind"] == kind and d["metadata"]["name"].endswith(name)]


def templates(documents: list[Object]) -> Iterator[Object]:
    """The pods that would be made: with `metadata` and `spec`."""
    for document in documents:
        match document["kind"]:
            case "Deployment":
                yield document["spec"]["template"]
            case "RayCluster":
                for group in (document["spec"]["headGroupSpec"], *document["spec"]["workerGroupSpecs"]):
                    yield group["template"]


def containers(documents: list[Object]) -> Iterator[tuple[Object, Object]]:
    """Each container with its pod."""
    for pod in templates(documents):
        for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
            yield container, pod


@pytest.mark.parametrize("name", VALUES)
def test_every_pod_is_confined(rendered: dict[str, list[Object]], name: str) -> None:
    for container, pod in containers(rendered[name]):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False  # they would set TUNEWRIGHT_... variables
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/data", "/tmp"}
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
        assert all("sizeLimit" in volume["emptyDir"] for volume in spec["volumes"])
        assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("name", VALUES)
def test_secrets_are_named_never_shown(rendered: dict[str, list[Object]], name: str) -> None:
    for container, _ in containers(rendered[name]):
        for variable in container.get("env", []):
            if variable["name"] in ("TUNEWRIGHT_DB", "RAY_AUTH_TOKEN"):
                assert "value" not in variable
                assert variable["valueFrom"]["secretKeyRef"]["name"]
    shown = json.dumps([d for d in rendered[name] if d["kind"] != "Secret"])
    assert "secret@db" not in shown


@pytest.mark.parametrize("name", VALUES)
def test_selectors_find_their_pods(rendered: dict[str, list[Object]], name: str) -> None:
    labels = [pod["metadata"]["labels"] for pod in templates(rendered[name])]

    def found(selector: Object) -> bool:
        return any(selector.items() <= of.items() for of in labels)

    for document in rendered[name]:
        match document["kind"]:
            case "Deployment" | "PodDisruptionBudget":
                assert found(document["spec"]["selector"]["matchLabels"])
            case "Service":
                assert found(document["spec"]["selector"])
            case "NetworkPolicy" if name != "cluster-of-others" or not document["metadata"]["name"].endswith("-ray"):
                assert found(document["spec"]["podSelector"]["matchLabels"])


def test_the_schema_is_migrated_before_anything_starts(rendered: dict[str, list[Object]]) -> None:
    for documents in rendered.values():
        for deployment in of_kind(documents, "Deployment"):
            (first,) = deployment["spec"]["template"]["spec"]["initContainers"]
            assert first["args"] == ["db", "upgrade"]


def test_probes_ask_for_the_paths_given(rendered: dict[str, list[Object]]) -> None:
    def paths(name: str) -> list[str]:
        (api,) = of_kind(rendered[name], "Deployment", "-api")
        (container,) = api["spec"]["template"]["spec"]["containers"]
        probes = [container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")]
        assert all(probe["port"] == "http" for probe in probes)
        return [probe["path"] for probe in probes]

    assert paths("defaults") == ["/livez", "/livez", "/readyz"]
    assert paths("everything") == ["/behind/livez", "/behind/livez", "/behind/readyz"]


def test_ray_has_its_token_and_no_dashboard(rendered: dict[str, list[Object]], ray_version: str) -> None:
    for name, secret in (("defaults", None), ("everything", "ray-token")):
        (cluster,) = of_kind(rendered[name], "RayCluster")
        (tuner,) = of_kind(rendered[name], "Deployment", "-tuner")
        spec = cluster["spec"]
        assert spec["authOptions"] == ({"mode": "token", "secretName": secret} if secret else {"mode": "token"})
        assert spec["rayVersion"] == ray_version
        head = spec["headGroupSpec"]["rayStartParams"]
        assert (head["num-cpus"], head["include-dashboard"], head["dashboard-host"]) == ("0", "false", "127.0.0.1")
        (container,) = tuner["spec"]["template"]["spec"]["containers"]
        env = {variable["name"]: variable for variable in container["env"]}
        assert env["RAY_AUTH_MODE"]["value"] == "token"
        # Without a secret of the user's, KubeRay makes one under the name of the cluster.
        made = {"name": secret or cluster["metadata"]["name"], "key": "auth_token"}
        assert env["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == made
        assert f"--address={cluster['metadata']['name']}-head-svc:6379" in container["args"][0]
        assert len(cluster["metadata"]["name"]) <= 53  # KubeRay's limit


def test_a_cluster_of_others_is_joined(rendered: dict[str, list[Object]]) -> None:
    assert not of_kind(rendered["cluster-of-others"], "RayCluster")
    (tuner,) = of_kind(rendered["cluster-of-others"], "Deployment", "-tuner")
    (container,) = tuner["spec"]["template"]["spec"]["containers"]
    assert "--ray-address head.ray.svc:6379" in container["args"][0]


def test_what_candidates_run_on_reaches_nothing_but_its_cluster(rendered: dict[str, list[Object]]) -> None:
    (policy,) = of_kind(rendered["everything"], "NetworkPolicy", "-ray")
    spec = policy["spec"]
    assert sorted(spec["policyTypes"]) == ["Egress", "Ingress"]
    for rule in spec["egress"]:
        if "to" in rule:
            (peer,) = rule["to"]
            assert peer["podSelector"]["matchExpressions"][0]["values"] == ["ray", "tuner"]
        else:
            assert {port["port"] for port in rule["ports"]} == {53}


def test_tuning_alone_needs_no_ray(rendered: dict[str, list[Object]]) -> None:
    kinds = {document["kind"] for document in rendered["local"]}
    assert kinds == {"Deployment", "Service"}
    (tuner,) = of_kind(rendered["local"], "Deployment", "tw-tuner")
    (container,) = tuner["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["work", "--pool=local"]
    assert not [variable for variable in container["env"] if variable["name"].startswith("RAY")]


def test_monitoring_brings_rules_and_board(rendered: dict[str, list[Object]], deploy: Path) -> None:
    (rules,) = of_kind(rendered["everything"], "PrometheusRule")
    assert rules["spec"] == yaml.safe_load((deploy / "prometheus" / "rules.yaml").read_text(encoding="utf-8"))
    (board,) = of_kind(rendered["everything"], "ConfigMap")
    text = (deploy / "grafana" / "tunewright.json").read_text(encoding="utf-8")
    assert json.loads(board["data"]["tunewright.json"]) == json.loads(text)
    (monitor,) = of_kind(rendered["everything"], "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "tunewright-metrics", "key": "key"}
    assert monitor["spec"]["jobLabel"] == "app.kubernetes.io/name"  # which the alerts know the job by
