"""What the chart comes to, by the schemas of Kubernetes and KubeRay, strictly: no field that they do not know.

Kubernetes' are in the package kubernetes-validate, at 110 MB no dependency of the tests; KubeRay's is the file
ray-operator/config/crd/bases/ray.io_rayclusters.yaml of its repository. With them:

    pip install --target FOLDER --no-deps kubernetes-validate
    PYTHONPATH=FOLDER KUBERAY_CRD=FILE ./dev test tests/deploy/test_schemas.py
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import referencing
import yaml  # type: ignore[import-untyped]
from referencing.jsonschema import DRAFT7

Object = dict[str, Any]

OF_OTHERS = {"RayCluster", "ServiceMonitor", "PrometheusRule"}


def folder() -> Path:
    """Where Kubernetes' schemas are."""
    found = importlib.util.find_spec("kubernetes_validate")
    if found is None or found.origin is None:
        pytest.skip("the schemas of Kubernetes are in the package kubernetes-validate: see the head of this file")
    return Path(found.origin).parent / "kubernetes-json-schema"


@pytest.mark.parametrize("version", ["1.29.0", "1.37.0"])
def test_kubernetes_accepts_it(rendered: dict[str, list[Object]], version: str) -> None:
    schemas = folder() / f"v{version}-local-strict"
    checked = 0
    for documents in rendered.values():
        for document in documents:
            if document["kind"] not in OF_OTHERS:
                validate(document, schemas)
                checked += 1
            else:
                for pod in pods(document):
                    validate({"apiVersion": "v1", "kind": "Pod", **pod}, schemas)
                    checked += 1
    assert checked > 30


def validate(document: Object, schemas: Path) -> None:
    """By the schema of its kind, which refers to others of the folder."""
    *group, version = document["apiVersion"].split("/")
    name = "-".join([document["kind"].lower(), *(part.partition(".")[0] for part in group), version])

    def retrieve(uri: str) -> referencing.Resource[Any]:
        contents = json.loads((schemas / uri.rpartition("/")[2]).read_text(encoding="utf-8"))
        return DRAFT7.create_resource(contents)

    schema = {"$ref": f"file:///{name}.json"}
    registry: referencing.Registry[Any] = referencing.Registry(retrieve=retrieve)  # type: ignore[call-arg]
    jsonschema.Draft7Validator(schema, registry=registry).validate(document)


def pods(document: Object) -> list[Object]:
    if document["kind"] != "RayCluster":
        return []
    groups = (document["spec"]["headGroupSpec"], *document["spec"]["workerGroupSpecs"])
    return [group["template"] for group in groups]


def test_kuberay_accepts_it(rendered: dict[str, list[Object]]) -> None:
    if "KUBERAY_CRD" not in os.environ:
        pytest.skip("the schema of a RayCluster is not here: see the head of this file")
    definition = yaml.safe_load(Path(os.environ["KUBERAY_CRD"]).read_text(encoding="utf-8"))
    (schema,) = [v["schema"]["openAPIV3Schema"] for v in definition["spec"]["versions"] if v["name"] == "v1"]
    clusters = [d for documents in rendered.values() for d in documents if d["kind"] == "RayCluster"]
    assert len(clusters) >= 3
    for cluster in clusters:
        jsonschema.validate(cluster, closed(schema), jsonschema.Draft7Validator)


def closed(schema: Any) -> Any:
    """With every field refused that it does not name, which Kubernetes would drop."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
    if isinstance(schema.get("properties"), dict) and "type" in schema and "additionalProperties" not in schema:
        found["additionalProperties"] = False
    if found.get("properties", {}).get("metadata") == {"type": "object"}:
        found["properties"]["metadata"] = {"type": "object", "properties": {"name": {"type": "string"}}}
    return found
