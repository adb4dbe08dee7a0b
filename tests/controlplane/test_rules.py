"""docs/durability.md: every rule that code cites stands there, with tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "durability.md").read_text(encoding="utf-8")
_SECTION = re.compile(r"^## (§8\.\d+|Security)[^\n]*\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
SECTIONS = dict(_SECTION.findall(PAGE))
FOLDERS = ("controlplane", "node_agent", "operator", "cli", "tests")


def test_all_rules_are_there() -> None:
    assert list(SECTIONS) == [*(f"§8.{number}" for number in range(1, 14)), "Security"]


@pytest.mark.parametrize("rule", SECTIONS)
def test_a_rule_names_tests_that_exist(rule: str) -> None:
    named = re.findall(r"^- `([\w/]+\.py)`: (.+)$", SECTIONS[rule], re.MULTILINE)
    assert named
    for path, text in named:
        source = (ROOT / path).read_text(encoding="utf-8")
        tests = re.findall(r"`(\w+)`", text)
        assert tests, path
        for test in tests:
            assert re.search(rf"(def {test}\(|^{test} = )", source, re.MULTILINE), (path, test)


def test_code_cites_no_other_rule() -> None:
    cited = {
        rule
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for rule in re.findall(r"§8\.\d+", path.read_text(encoding="utf-8"))
    }
    assert cited <= set(SECTIONS)
    assert len(cited) == 13
