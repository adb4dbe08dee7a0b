"""The documentation says what the code does: generated parts, links, commands, names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from benchmarks.papers.paper import PAPERS
from observability.alerts import ALERTS
from scripts.generate_chart import CONTROLPLANE_BY_CHART
from weir_cli.main import make_app
from weir_controlplane.settings import Settings
from weir_operator.planning.children.agent_settings import NOT_CARRIED

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "benchmarks" / "history.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]


def code_blocks(page: Path) -> list[str]:
    """What stands in a block of a shell, or of no language at all."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [block for language, block in blocks if language in {"", "sh", "bash", "console"}]


def commands(page: Path, program: str) -> list[str]:
    """Every call of ``program`` in the page's shell blocks, with continued lines joined."""
    lines = "\n".join(code_blocks(page)).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if re.match(rf"\s*{program}\s", line)]


def test_generated_parts_are_fresh() -> None:
    command = [sys.executable, "-m", "scripts.generate_docs", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    inside = [target for target in targets if not target.startswith(("http://", "https://", "#"))]
    missing = [target for target in inside if not (page.parent / target.partition("#")[0]).exists()]
    assert missing == []


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_to_headings_that_are_there(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]*)#([^)\s]+)\)", page.read_text())
    inside = [(name, anchor) for name, anchor in targets if "://" not in name]
    missing = [
        f"{name}#{anchor}"
        for name, anchor in inside
        if anchor not in anchors(page.parent / name if name else page)
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_metrics_that_are_named_exist(page: Path) -> None:
    tables = "".join(
        (ROOT / "docs" / name).read_text() for name in ("operations.md", "operator.md")
    )
    known = set(re.findall(r"^\| `(weir_\w+)` \|", tables, re.MULTILINE))
    known |= {path.name for path in ROOT.glob("*/weir_*")}  # packages, and a benchmark
    parts = {f"{name}_{part}" for name in known for part in ("bucket", "sum", "count")}
    assert set(re.findall(r"\bweir_[a-z_]*[a-z]\b(?!_)", page.read_text())) <= known | parts


def test_every_benchmark_is_listed_and_run() -> None:
    """Whatever has a result file; `make bench` says that it runs every benchmark."""
    listed = (ROOT / "benchmarks" / "README.md").read_text()
    run = (ROOT / "scripts" / "bench.sh").read_text()
    results = {path.stem for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    assert results > set(PAPERS)
    for name in results - set(PAPERS):
        assert f"`benchmarks.{name}" in listed, name
        assert re.search(rf"\b{name}\b", run), name
    (papers,) = re.findall(r"`benchmarks\.papers ([a-z\\|]+) --data", listed)
    assert {*PAPERS, "all"} == set(papers.replace("\\", "").split("|"))
    assert "run papers all" in run


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_make_targets_that_are_named_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z0-9]+)", page.read_text()))
    named |= {word for call in commands(page, "make") for word in call.split()[1:2]}
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_weir_commands_that_are_shown_exist(page: Path) -> None:
    in_sentences = re.findall(r"`(weir [a-z][^`…]*)`", page.read_text())
    for call in (*commands(page, "weir"), *in_sentences):
        command = get_command(make_app())
        words = call.split("#")[0].split()[1:]
        while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
            assert words[0] in command.commands, call
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in parameter.opts}
        known |= {option for parameter in command.params for option in parameter.secondary_opts}
        used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert used <= known, call


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_modules_that_are_run_exist(page: Path) -> None:
    for name in re.findall(r"python -m ((?:benchmarks|scripts)[\w.]*)", page.read_text()):
        path = ROOT / name.rstrip(".").replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_weir_variables_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    tables = "".join(
        (ROOT / "docs" / name).read_text() for name in ("operations.md", "operator.md")
    )
    known = set(re.findall(r"`(WEIR_[A-Z0-9_]+)` \|", tables))
    assert set(re.findall(r"\bWEIR_[A-Z0-9_]*[A-Z0-9]\b", text)) <= known


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text()
    listed = re.findall(r"^- \[(\d+)\. .+\]\((\d+)-.+\)$", index, re.MULTILINE)
    numbers = [int(page.name.split("-")[0]) for page in sorted(folder.glob("[0-9]*.md"))]
    assert [(int(shown), int(linked)) for shown, linked in listed] == [(n, n) for n in numbers]


def test_runbooks_prescribe_what_has_an_effect() -> None:
    """At night nobody shall turn a screw that turns nothing."""
    text = (ROOT / "docs" / "runbooks.md").read_text()
    text += "".join(alert.description for alert in ALERTS)
    assert [name for name in NOT_CARRIED if name in text] == []
    named = set(re.findall(r"controlplane\.settings\.(\w+)", text))
    assert named
    assert named <= set(Settings.model_fields) - CONTROLPLANE_BY_CHART


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_tests_that_are_named_exist(page: Path) -> None:
    """A line of a page may name tests: `path`: `test`, `test` (or a class of them)."""
    for path, names in re.findall(r"^- `(tests/[^`]+\.py)`: (.*)$", page.read_text(), re.MULTILINE):
        source = (ROOT / path).read_text()
        for name in re.findall(r"`([tT]est\w+)`", names):
            assert re.search(rf"\b{name}\b", source), f"{path}: {name}"


def test_every_make_target_is_described() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z0-9]+):", makefile, re.MULTILINE))
    described = set(re.findall(r"^([a-z0-9]+):.*  ## ", makefile, re.MULTILINE))
    assert targets == described


def test_contributing_fits_two_pages() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 110


def test_no_lock_names_a_package_index() -> None:
    for lock in (ROOT / "requirements").iterdir():
        assert "://" not in lock.read_text(), lock


def test_top_level_folders_are_no_packages() -> None:
    """A top-level package `operator` would shadow the standard library's."""
    for folder in ("operator", "controlplane", "node_agent", "cli"):
        assert not (ROOT / folder / "__init__.py").exists()


def test_files_speak_of_the_repository_alone() -> None:
    """No path of somebody's machine, and no file that is too large to read."""
    foreign = re.compile(rb"(?<![\w.])/(?:work|root|home/[a-z]+)/[\w.]")
    found = [
        str(path.relative_to(ROOT))
        for path in tracked()
        if foreign.search(path.read_bytes()) and path != Path(__file__)
    ]
    assert found == []
    assert [path for path in tracked() if path.stat().st_size > 2_000_000] == []


def test_module_docstrings_are_short() -> None:
    """A charter is at most 8 lines: what belongs in a module and what must not."""
    long = []
    for path in tracked():
        if path.suffix == ".py" and not path.is_relative_to(ROOT / "tests"):
            match = re.match(r'\s*"""(.*?)"""', path.read_text(), re.DOTALL)
            if match and len(match[1].strip().splitlines()) > 8:
                long.append(str(path.relative_to(ROOT)))
    assert long == []
