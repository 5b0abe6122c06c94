"""Alert rules and board: they speak of metrics and labels that the service has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client import Histogram
from prometheus_client.metrics import MetricWrapperBase

from tunewright.api.http.metrics import Metrics
from tunewright.db.store import open_store

Object = dict[str, Any]

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
OF_PROMETHEUS = {"up"}
ADDED = {"job", "instance"}
"""Labels that Prometheus itself gives."""

WORDS = {"by", "without", "on", "ignoring", "offset", "unless", "and", "or", "bool", "group_left", "group_right", "le"}
FUNCTIONS = {"sum", "max", "min", "rate", "delta", "increase", "histogram_quantile", "label_values"}


@pytest.fixture(scope="session")
def labels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each series that the service tells."""
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('metrics') / 'tuning.db'}")
    try:
        metrics = Metrics(store)
        found: dict[str, set[str]] = {}
        for metric in metrics.registry.collect():
            for suffix in SUFFIXES[str(metric.type)]:
                found[metric.name + suffix] = {label for s in metric.samples for label in s.labels}
        for part in vars(metrics).values():  # those without a sample yet
            if isinstance(part, MetricWrapperBase):
                kind = part._type
                own = set(part._labelnames) | ({"le"} if isinstance(part, Histogram) else set())
                found |= {part._name + suffix: own for suffix in SUFFIXES[str(kind)]}
        found["tunewright_cost_model_quality"] = {"target_kind", "model", "figure"}  # there is none yet
        return found | {"up": set(), "tunewright_trials": {"status"}}
    finally:
        store.close()


def rules(deploy: Path) -> list[Object]:
    groups = yaml.safe_load((deploy / "prometheus" / "rules.yaml").read_text(encoding="utf-8"))["groups"]
    assert len({group["name"] for group in groups}) == len(groups)
    return [rule for group in groups for rule in group["rules"]]


def board(deploy: Path) -> Object:
    found: Object = json.loads((deploy / "grafana" / "tunewright.json").read_text(encoding="utf-8"))
    return found


def expressions(deploy: Path) -> Iterator[tuple[str, str]]:
    """Every expression, with where it is."""
    for rule in rules(deploy):
        yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in board(deploy)["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in board(deploy)["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def recorded(deploy: Path) -> dict[str, set[str]]:
    """Labels of the series that rules record: those they are summed by."""
    return {
        rule["record"]: set(re.findall(r"\w+", re.findall(r"\bby \(([^)]*)\)", rule["expr"])[0])) - {"le"}
        for rule in rules(deploy)
        if "record" in rule
    }


def without_texts(expression: str) -> str:
    return re.sub(r'"[^"]*"', '""', expression)


def test_every_series_and_label_is_there(deploy: Path, labels: dict[str, set[str]]) -> None:
    known = labels | recorded(deploy)
    used = set()
    for where, expression in expressions(deploy):
        text = without_texts(expression)
        assert text.count("(") == text.count(")") and text.count("{") == text.count("}"), where
        names = set(re.findall(r"\b(?:tunewright[a-z0-9_:]*|up)\b", text))
        assert names and names <= known.keys(), f"{where}: {names - known.keys()}"
        used |= names
        allowed = ADDED | {"le"} | set().union(*(known[name] for name in names))
        for name, matchers in re.findall(r"([a-z_:0-9]+)\{([^}]*)\}", text):
            asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            assert asked <= known[name] | ADDED, f"{where}: {name} has no {asked - known[name] - ADDED}"
        for by in re.findall(r"\bby \(([^)]*)\)", text):
            assert set(re.findall(r"\w+", by)) <= allowed, f"{where}: by ({by})"
        rest = re.sub(r"\{[^}]*\}|\bby \([^)]*\)|\[\w+\]|offset \w+", " ", text)
        words = set(re.findall(r"\b[a-z_][a-z0-9_:]*\b", rest)) - names - WORDS - FUNCTIONS
        assert words <= {"job"}, f"{where}: {words}"
    assert {name.removesuffix("_total").removesuffix("_bucket") for name in used} >= {
        "tunewright_jobs",
        "tunewright_http_requests",
        "tunewright_lookups",
        "tunewright_database_up",
    }


def test_every_expression_is_promql(deploy: Path) -> None:
    parsed = 0
    for where, expression in expressions(deploy):
        if not expression.startswith("label_values("):  # Grafana's own
            assert promql_parser.parse(expression.replace("$__rate_interval", "5m")), where
            parsed += 1
    assert parsed > 20


def test_every_alert_says_what_it_means(deploy: Path) -> None:
    alerts = [rule for rule in rules(deploy) if "alert" in rule]
    assert len({alert["alert"] for alert in alerts}) == len(alerts)
    for alert in alerts:
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"].keys() == {"summary", "description"}
        assert re.fullmatch(r"\d+[mh]", alert["for"])


def test_every_alert_is_in_the_rules_own_tests_and_in_the_docs(deploy: Path, root: Path) -> None:
    tests = (deploy / "prometheus" / "rules_test.yaml").read_text(encoding="utf-8")
    page = (root / "docs" / "operate.md").read_text(encoding="utf-8")
    for rule in rules(deploy):
        if "alert" in rule:
            fires = rf"alertname: {rule['alert']}\n +eval_time: \w+\n +exp_alerts:\n +- exp_labels"
            assert re.search(fires, tests), rule["alert"]
            assert f"`{rule['alert']}`" in page


def test_every_metric_is_in_the_docs(root: Path, labels: dict[str, set[str]]) -> None:
    page = (root / "docs" / "operate.md").read_text(encoding="utf-8")
    rows = {found[1]: found[0] for found in re.finditer(r"^\| `(tunewright_\w+)` \|.*$", page, re.MULTILINE)}
    told = {
        name.removesuffix("_bucket"): of - {"le"}
        for name, of in labels.items()
        if name.startswith("tunewright_") and not name.endswith(("_sum", "_count"))
    }
    assert rows.keys() == told.keys()
    for name, of in told.items():
        assert all(f"`{label}`" in rows[name] for label in of), rows[name]


def test_the_board_is_sound(deploy: Path) -> None:
    panels = board(deploy)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        for target in panel.get("targets", []):
            assert target["datasource"]["uid"] == "${datasource}"
        letters = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(letters)) == len(letters)
