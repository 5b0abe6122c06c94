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
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

from tunewright.api.http.release_key import OTHERS
from tunewright.workers.ray.nodes import GROUP

Object = dict[str, Any]

HERE = Path(__file__).parent
CHART = HERE.parents[1] / "deploy" / "helm" / "tunewright"
GOLDEN = HERE.parent / "golden"
VALUES: dict[str, Object] = yaml.safe_load((HERE / "chart_values.yaml").read_text(encoding="utf-8"))
DEFAULTS: Object = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
CONFINED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
OF_AUTOSCALER = "kubernetes"
"""The volume with the token of its account."""

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


def with_group(**given: Any) -> Object:
    group = {"name": "a", "replicas": 1, "resources": {}, **given}
    return {"database": {"url": "postgresql://db/x"}, "ray": {"workerGroups": [group]}}


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
        ({"database": {"url": "postgresql://db/x"}, "ray": {"workerGroups": []}}, "non-empty"),
        (with_group(), None),
        (with_group(minReplicas=0, maxReplicas=2), "less than"),
        (with_group(image="registry/image:1"), "not of type 'object'"),
        (with_group(image={"name": "registry/image"}), "unexpected"),
        (with_group(runtimeClass="nvidia"), "'runtimeClass' was unexpected"),
        (with_group(runtimeClassName=1), "not of type 'string'"),
        (with_group(env={"A": "b"}), "not of type 'array'"),
        (with_group(env=[{"name": "A", "value": 1}]), "not of type 'string'"),
        (with_group(env=[{"name": "A", "values": "1"}]), "unexpected"),
        (with_group(volumes=[{"name": "tmp", "emptyDir": {}}]), "should not be valid"),  # the chart's own
        (with_group(volumes=[{"name": "cache"}]), "does not have enough properties|too few|is too short"),
        (with_group(volumeMounts=[{"name": "cache"}]), "required"),
        (with_group(tolerations=[{"key": "a", "effect": "Never"}]), "not one of"),
        (with_group(nodeSelector={"gpu": True}), "not of type 'string'"),
        (with_group(podSecurityContext={"runAsNonRoot": False}), "expected"),
        (with_group(podLabels={"app.kubernetes.io/component": "api"}), "should not be valid"),
        (
            {"database": {"url": "postgresql://db/x"}, "networkPolicy": {"ingressFrom": ["nginx"]}},
            "not of type 'object'",
        ),
        ({"database": {"url": "postgresql://db/x"}, "networkPolicy": {"apiFrom": [{}]}}, "non-empty|enough"),
    ],
)
def test_wrong_values_are_refused(given: Object, said: str | None) -> None:
    with nullcontext() if said is None else pytest.raises(jsonschema.ValidationError, match=said):
        jsonschema.validate(merged(DEFAULTS, given), SCHEMA, jsonschema.Draft7Validator)


def test_examples_keep_to_the_schema(root: Path) -> None:
    page = (root / "docs" / "deploy.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?m)^    (?:ray|networkPolicy):\n(?:      .*\n)+", page)
    commented = re.findall(
        r"(?m)^  #   - name: .*\n(?:  #     .*\n)+", (CHART / "values.yaml").read_text(encoding="utf-8")
    )
    examples = [yaml.safe_load(block) for block in blocks]
    examples += [{"ray": {"workerGroups": yaml.safe_load(text.replace("  #   ", ""))}} for text in commented]
    assert len(examples) == 3
    for example in examples:
        given = merged(DEFAULTS, {"database": {"existingSecret": "db"}} | example)
        jsonschema.validate(given, SCHEMA, jsonschema.Draft7Validator)


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
                    pod = group["template"]
                    kind = "head" if group is document["spec"]["headGroupSpec"] else "worker"
                    labels = pod["metadata"]["labels"] | {"ray.io/node-type": kind}  # which KubeRay gives them
                    yield {**pod, "metadata": {**pod["metadata"], "labels": labels}}


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
        assert {**container["securityContext"], "capabilities": ""} == {**CONFINED, "capabilities": ""}
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
        assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {"/data", "/tmp"}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert len(volumes) == len(spec["volumes"])
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys() - {OF_AUTOSCALER}
        assert all("sizeLimit" in volume["emptyDir"] for volume in volumes.values() if "emptyDir" in volume)
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
def test_all_replicas_sign_by_one_key_that_outlives_them(rendered: dict[str, list[Object]], name: str) -> None:
    (api,) = of_kind(rendered[name], "Deployment", "-api")
    spec = api["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (path,) = [Path(v["value"]) for v in container["env"] if v["name"] == "TUNEWRIGHT_RELEASE_KEY"]
    (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == str(path.parent)]
    (volume,) = [v for v in spec["volumes"] if v["name"] == mount["name"]]
    assert mount["readOnly"] is True and path.name == "release_key"
    assert volume["secret"]["optional"] is True  # so that the service starts before there is one
    assert volume["secret"]["defaultMode"] & OTHERS == 0  # else it is refused
    given = VALUES[name].get("api", {}).get("releaseKeySecret")
    assert volume["secret"]["secretName"] == given or volume["secret"]["secretName"].endswith("-release-key")


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


def groups(documents: list[Object]) -> dict[str, Object]:
    (cluster,) = of_kind(documents, "RayCluster")
    return {group["groupName"]: group for group in cluster["spec"]["workerGroupSpecs"]}


def test_a_cluster_with_a_group_that_grows_has_an_autoscaler(rendered: dict[str, list[Object]]) -> None:
    for name, is_there in (("defaults", False), ("gpus", True)):
        (cluster,) = of_kind(rendered[name], "RayCluster")
        assert cluster["spec"].get("enableInTreeAutoscaling", False) is is_there
        assert ("autoscalerOptions" in cluster["spec"]) is is_there
        assert bool(of_kind(rendered[name], "NetworkPolicy", "-autoscaler")) is is_there
    sizes = {name: (g["minReplicas"], g["replicas"], g["maxReplicas"]) for name, g in groups(rendered["gpus"]).items()}
    assert sizes == {"cpu": (1, 1, 4), "a-gpu": (1, 1, 3), "own-image": (2, 2, 2)}


def test_ray_reads_the_groups_as_they_are_meant(rendered: dict[str, list[Object]]) -> None:
    config = pytest.importorskip("ray.autoscaler._private.kuberay.autoscaling_config")
    (cluster,) = of_kind(rendered["gpus"], "RayCluster")
    cluster = {**cluster, "metadata": {**cluster["metadata"], "namespace": "tuning"}}
    read = config._derive_autoscaling_config_from_ray_cr(cluster)
    assert read["idle_timeout_minutes"] == 1
    kinds = read["available_node_types"]
    assert {name: (kind["min_workers"], kind["max_workers"]) for name, kind in kinds.items()} == {
        "headgroup": (0, 0),
        "cpu": (1, 4),
        "a-gpu": (1, 3),
        "own-image": (2, 2),
    }
    assert kinds["headgroup"]["resources"]["CPU"] == 0  # nothing is built or timed there
    assert (kinds["a-gpu"]["resources"]["CPU"], kinds["a-gpu"]["resources"]["GPU"]) == (8, 1)
    for name in ("cpu", "a-gpu"):
        assert kinds[name]["resources"][f"{GROUP}{name}"] == 1  # the tuner asks for nodes by it
    assert not [resource for resource in kinds["own-image"]["resources"] if resource.startswith(GROUP)]


def test_the_autoscaler_alone_can_change_the_cluster(rendered: dict[str, list[Object]]) -> None:
    (cluster,) = of_kind(rendered["gpus"], "RayCluster")
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    assert "serviceAccountName" not in head  # KubeRay makes one, with a role
    (options,) = [cluster["spec"]["autoscalerOptions"]]
    assert {**options["securityContext"]} == CONFINED
    mounts = {mount["name"]: mount["mountPath"] for mount in options["volumeMounts"]}
    assert mounts == {"tmp": "/tmp", OF_AUTOSCALER: "/var/run/secrets/kubernetes.io/serviceaccount"}
    (volume,) = [volume for volume in head["volumes"] if volume["name"] == OF_AUTOSCALER]
    paths = [item.get("path") for source in volume["projected"]["sources"] for item in source.values()]
    assert "token" in paths
    for group in groups(rendered["gpus"]).values():
        assert group["template"]["spec"]["serviceAccountName"] == "release-tunewright"  # which has no role
    (policy,) = of_kind(rendered["everything"], "NetworkPolicy", "-autoscaler")
    assert policy["spec"]["podSelector"]["matchLabels"]["ray.io/node-type"] == "head"
    (rule,) = policy["spec"]["egress"]
    assert rule == {"ports": [{"port": 6443, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]}


def test_each_pod_has_the_image_that_it_needs(rendered: dict[str, list[Object]], version: str) -> None:
    def images(name: str) -> dict[str, str]:
        return {c["name"]: c["image"] for c, _ in containers(rendered[name])}

    assert set(images("defaults").values()) == {f"tunewright:{version}"}
    made = images("gpus")
    assert (made["api"], made["tuner"], made["ray-head"]) == tuple(
        f"registry.example.org/tunewright:{tag}" for tag in ("8", "7", "7")
    )
    workers = {n: g["template"]["spec"]["containers"][0]["image"] for n, g in groups(rendered["gpus"]).items()}
    assert workers == {
        "cpu": "registry.example.org/tunewright:7",
        "a-gpu": "registry.example.org/tunewright:7-cuda",
        "own-image": f"registry.example.org/tunewright-own@{VALUES['everything']['image']['digest']}",
    }


def test_pods_have_all_that_is_given_for_them(rendered: dict[str, list[Object]]) -> None:
    pod = groups(rendered["gpus"])["a-gpu"]["template"]
    given = VALUES["gpus"]["ray"]["workerGroups"][1]
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    for field in ("runtimeClassName", "priorityClassName", "tolerations", "affinity", "terminationGracePeriodSeconds"):
        assert spec[field] == given[field]
    assert (container["env"], container["resources"]) == (given["env"], given["resources"])
    assert given["volumeMounts"][0] in container["volumeMounts"] and given["volumes"][0] in spec["volumes"]
    assert pod["metadata"]["annotations"] == given["podAnnotations"]
    assert pod["metadata"]["labels"]["team"] == "compilers"
    assert spec["securityContext"]["supplementalGroups"] == [44] and spec["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"]["capabilities"] == given["securityContext"]["capabilities"]
    (api,) = of_kind(rendered["gpus"], "Deployment", "-api")
    spec = api["spec"]["template"]["spec"]
    for container in spec["initContainers"] + spec["containers"]:  # the migration opens the same database
        assert VALUES["gpus"]["api"]["env"][0] in container["env"]
        assert VALUES["gpus"]["api"]["volumeMounts"][0] in container["volumeMounts"]
        assert container["envFrom"] == VALUES["gpus"]["api"]["envFrom"]


def test_who_else_reaches_the_service_is_said(rendered: dict[str, list[Object]]) -> None:
    def peers(name: str) -> list[Object]:
        (policy,) = of_kind(rendered[name], "NetworkPolicy", "-api")
        (rule,) = policy["spec"]["ingress"]
        found: list[Object] = rule["from"]
        return found

    assert peers("defaults") == [{"podSelector": {}}]
    given = VALUES["everything"]["networkPolicy"]
    assert peers("everything") == [{"podSelector": {}}, *given["ingressFrom"], *given["prometheusFrom"]]


@pytest.mark.skipif(
    importlib.util.find_spec("helm_python") is None, reason="Helm is not here: see the head of this file"
)
@pytest.mark.parametrize(
    ("group", "said"),
    [
        ({"minReplicas": 1}, "a has minReplicas and no maxReplicas"),
        ({"replicas": 5, "maxReplicas": 4}, "a has replicas 5, which must be from minReplicas 5 to maxReplicas 4"),
        ({"replicas": 1, "minReplicas": 2, "maxReplicas": 4}, "must be from minReplicas 2 to maxReplicas 4"),
        ({"replicas": 0, "maxReplicas": 4}, "keeps at least one node"),
        ({"image": "x:1"}, "workerGroups/0/image"),
        ({"runtimeClass": "nvidia"}, "runtimeClass"),
    ],
)
def test_helm_says_what_is_wrong(group: Object, said: str) -> None:
    with pytest.raises(Exception, match=said):  # of a package that is not always here
        render(with_group(**group))


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
    assert monitor["metadata"]["namespace"] == rules["metadata"]["namespace"] == "monitoring"
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["tuning"]}  # where what it watches is
    assert board["metadata"]["namespace"] == "tuning"
    assert monitor["spec"]["jobLabel"] == "app.kubernetes.io/name"  # which the alerts know the job by
