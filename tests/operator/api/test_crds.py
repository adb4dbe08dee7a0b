"""The CRDs are what the models say, and read well."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from weir_operator.api.batchjob import SINCE_1970, BatchJobSpec
from weir_operator.api.crd import DEFINITIONS, manifest
from weir_operator.api.generate import rendered, stale
from weir_operator.api.llmservice_parts import IDLE
from weir_operator.planning.children.agent_settings import NOT_CARRIED
from weir_operator.planning.conditions import rfc3339

CRDS = Path(__file__).resolve().parents[3] / "crds"
KINDS = [definition.kind for definition in DEFINITIONS]


def schema_of(kind: str) -> dict[str, Any]:
    definition = next(item for item in DEFINITIONS if item.kind == kind)
    version = manifest(definition)["spec"]["versions"][0]
    root: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return root


def walk(schema: dict[str, Any], place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield place, schema
    for name, item in schema.get("properties", {}).items():
        yield from walk(item, f"{place}.{name}")
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield from walk(schema[key], place + mark)


def test_crds_are_what_the_models_say() -> None:
    assert stale(CRDS) == [], "run make crds"


def test_a_changed_or_foreign_file_is_stale(tmp_path: Path) -> None:
    for name, text in rendered().items():
        (tmp_path / name).write_text(text)
    assert stale(tmp_path) == []
    name = next(iter(rendered()))
    (tmp_path / name).write_text(rendered()[name] + "# by hand\n")
    (tmp_path / "other.yaml").write_text("kind: Other\n")
    assert stale(tmp_path) == ["other.yaml", name]


def test_fields_without_effect_say_so_and_no_others() -> None:
    """Where `kubectl explain` and docs/crds.md say what they are for."""
    spec = schema_of("LLMService")["properties"]["spec"]
    idle = {place[1:] for place, item in walk(spec) if IDLE in item.get("description", "")}
    assert {place for place in idle if place.count(".") == 1} == set(NOT_CARRIED)
    below = {place[1:] for place, _ in walk(spec) if place[1:].startswith(NOT_CARRIED)}
    assert idle == below


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_explained_by_a_sentence(kind: str) -> None:
    for place, schema in walk(schema_of(kind)):
        if place.endswith(("[]", "{}", ".metadata")) and place.count(".") <= 1:
            continue
        if place.endswith(("[]", "{}")):
            continue  # the list's own description speaks of its items
        text = schema.get("description", "")
        assert re.match(r"[A-Z0-9a-z].*[.)]$", text, re.DOTALL), f"{kind}{place}: {text!r}"


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_structural(kind: str) -> None:
    for place, schema in walk(schema_of(kind)):
        assert not {"$ref", "$defs", "const", "title", "prefixItems", "uniqueItems"} & set(schema)
        if not schema.get("x-kubernetes-int-or-string"):
            assert "type" in schema, place
            assert "anyOf" not in schema, place
        assert schema.get("additionalProperties") is not False, place
        for bound in ("exclusiveMinimum", "exclusiveMaximum"):
            assert schema.get(bound, True) is True, place


@pytest.mark.parametrize("kind", KINDS)
def test_lists_say_how_they_are_merged(kind: str) -> None:
    for place, schema in walk(schema_of(kind)):
        if schema.get("type") == "array":
            assert schema.get("x-kubernetes-list-type") in {"map", "atomic"}, place
        if schema.get("x-kubernetes-list-type") == "map":
            assert set(schema["x-kubernetes-list-map-keys"]) <= set(schema["items"]["required"])


@pytest.mark.parametrize("kind", KINDS)
def test_rules_explain_themselves(kind: str) -> None:
    for place, schema in walk(schema_of(kind)):
        for item in schema.get("x-kubernetes-validations", ()):
            assert len(item["message"]) > 20, place
            assert re.search(r"must|cannot|needs|is needed|with|remove|only", item["message"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_value_that_is_wrong_fails_no_rule(kind: str) -> None:
    """A rule that cannot be evaluated forbids every later write; of texts with a format it may."""
    for place, schema in walk(schema_of(kind)):
        assert not ("format" in schema and "x-kubernetes-validations" in schema), place


@given(st.from_regex(SINCE_1970.replace("$", r"\Z"), alphabet=st.characters(max_codepoint=127)))
def test_a_deadline_that_the_rule_lets_pass_is_read(deadline: str) -> None:
    """But for leap days, which it does not count."""
    assume("-02-29T" not in deadline)
    spec = {"serviceRef": {"name": "chat"}, "input": {"inline": "{}"}, "deadline": deadline}
    read = BatchJobSpec.model_validate(spec).deadline
    assert read is not None
    assert rfc3339(read.replace(tzinfo=UTC))[:16] == deadline[:16]


def test_nothing_is_completed_in_a_status() -> None:
    for kind in KINDS:
        status = schema_of(kind)["properties"]["status"]
        assert [place for place, schema in walk(status) if "default" in schema] == []


def test_rules_of_optional_fields_stand_at_their_parent() -> None:
    """A rule on the field itself is evaded by removing the field, then adding it anew."""
    for kind in KINDS:
        for place, schema in walk(schema_of(kind)):
            for item in schema.get("x-kubernetes-validations", ()):
                assert not re.search(r"self == oldSelf|self != oldSelf", item["rule"]), place


@pytest.mark.parametrize("kind", KINDS)
def test_columns_point_at_fields_that_exist(kind: str) -> None:
    definition = next(item for item in DEFINITIONS if item.kind == kind)
    places = {place for place, _ in walk(schema_of(kind))}
    for column in definition.columns:
        path = re.sub(r"\[\?.*?\]", "[]", column.path)
        assert path in places or path.startswith(".metadata"), column.name


def test_files_are_yaml_that_names_its_generator() -> None:
    for name in rendered():
        text = (CRDS / name).read_text()
        assert text.startswith("# Generated")
        assert yaml.safe_load(text)["kind"] == "CustomResourceDefinition"
