import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pagefleet.api import crd
from pagefleet.api.cel import VALIDATIONS
from pagefleet.api.labels import SCHEMA_HASH_ANNOTATION
from pagefleet.api.resources import INFERENCE_SERVICES
from tests.crds.schema_walk import root_schema, rules, walk

ROOT = Path(__file__).parents[2]
MOST_BYTES = 100_000

# Fields that hold any object, and are judged elsewhere.
FREE = {"spec.template.metadata", "spec.template.spec"}


def test_the_file_in_the_repository_is_current() -> None:
    """Write it again with `pagefleet crds > crds/inferenceservices.serving.pagefleet.io.yaml`."""
    assert (ROOT / crd.CRD_FILE).read_text() == crd.crd_yaml()


def test_the_yaml_holds_the_manifest() -> None:
    assert yaml.safe_load(crd.crd_yaml()) == crd.crd_manifest()


def test_size(measured: Callable[[str], None]) -> None:
    size, compact = len(crd.crd_yaml().encode()), len(json.dumps(crd.crd_manifest(), separators=(",", ":")))
    measured(f"CRD: {size / 1000:.1f} KB of YAML, {compact / 1000:.1f} KB of JSON, {len(rules())} CEL rules")
    assert size < MOST_BYTES


def test_names() -> None:
    manifest = crd.crd_manifest()
    assert manifest["metadata"]["name"] == INFERENCE_SERVICES.crd_name
    assert manifest["spec"]["names"]["shortNames"] == ["pf"]
    assert manifest["spec"]["names"]["categories"] == ["all"]


def test_the_hash_is_of_the_content() -> None:
    manifest = crd.crd_manifest()
    assert manifest["metadata"]["annotations"] == {SCHEMA_HASH_ANNOTATION: crd.schema_hash()}
    assert re.fullmatch("[0-9a-f]{16}", crd.schema_hash())


def test_every_field_is_explained() -> None:
    silent = {path for path, node in walk(root_schema()) if not node.get("description")}
    items_and_values = {path for path in silent if path.endswith(("[0]", ".*"))}
    assert silent - items_and_values == {"metadata"}  # the API server explains that one


def test_the_schema_is_structural() -> None:
    """Each node has one type, and nothing that the API server takes only outside of custom resources."""
    allowed = {
        *("type", "description", "default", "required", "properties", "items", "enum", "format", "minimum", "maximum"),
        *(
            "exclusiveMinimum",
            "minLength",
            "maxLength",
            "minItems",
            "maxItems",
            "pattern",
            "additionalProperties",
            "anyOf",
        ),
    }
    for path, node in walk(root_schema()):
        assert {key for key in node if not key.startswith("x-kubernetes-")} <= allowed, path
        assert ("type" in node) != ("x-kubernetes-int-or-string" in node), path
        assert (path in FREE) == ("x-kubernetes-preserve-unknown-fields" in node), path


def test_a_pattern_is_left_to_a_rule_with_words() -> None:
    with_pattern = {path for path, node in walk(root_schema()) if "pattern" in node}
    assert with_pattern == {"status.conditions[0].reason"}


def test_defaults_are_whole_and_stand_in_the_spec_alone() -> None:
    fields = root_schema()["properties"]
    assert [path for path, node in walk(fields["status"], "status") if "default" in node] == []
    spec = fields["spec"]["properties"]
    assert spec["replicas"]["default"] == 1
    assert spec["accelerator"]["default"] == {"count": 1}
    assert spec["rollout"]["default"] == {"strategy": "Auto", "progressDeadline": "15m"}
    assert spec["engine"]["default"] == {"weights": {}, "kvCache": {}, "parallelism": {}}
    assert spec["template"]["default"] == {}
    assert "default" not in spec["autoscaling"]
    assert spec["autoscaling"]["properties"]["slo"]["default"] == {}


def test_conditions_are_a_map() -> None:
    conditions = root_schema()["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


def field_at(path: str) -> dict[str, Any]:
    """Return the schema at a simple JSONPath."""
    schema = root_schema()
    for name in re.sub(r"\[\?.*?\]", "[0]", path).removeprefix(".").split("."):
        schema = schema["properties"][name.removesuffix("[0]")]
        if name.endswith("[0]"):
            schema = schema["items"]
    return schema


def test_columns_and_scale_point_at_fields() -> None:
    (version,) = crd.crd_manifest()["spec"]["versions"]
    columns = {column["name"]: column for column in version["additionalPrinterColumns"]}
    assert list(columns) == ["Ready", "Reason", "Replicas", "KV%", "Queue", "Model", "URL", "Age"]
    for name, column in columns.items():
        if name != "Age":
            assert field_at(column["jsonPath"])["type"] == column["type"]
    scale = version["subresources"]["scale"]
    assert field_at(scale["specReplicasPath"])["format"] == "int32"
    assert field_at(scale["statusReplicasPath"])["format"] == "int32"
    assert field_at(scale["labelSelectorPath"])["type"] == "string"


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: f"{rule.field}: {rule.rule[:40]}")
def test_a_sentence_says_what_to_write(rule: Any) -> None:
    assert re.search(r"\b(write|remove)\b", rule.expression)


def test_rules_stand_where_their_cost_is_bounded() -> None:
    """The API server refuses rules over texts without a bound, and rules on items of a list without one."""
    nodes = dict(walk(root_schema()))
    for path, node in nodes.items():
        if VALIDATIONS in node and node.get("type") == "string":
            assert "maxLength" in node, path
        if VALIDATIONS in node and "[0]" in path:
            assert "maxItems" in nodes[path.partition("[0]")[0]], path
