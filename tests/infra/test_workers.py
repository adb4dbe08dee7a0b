"""What the workers of a test run get: servers are shared by tests of one worker alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import FOLDERS, ROOT, together

TESTS = "import pytest\n@pytest.mark.parametrize('number', range(6))\ndef test_it(number): pass\n"


def test_a_file_stays_together_and_so_do_files_that_share_an_engine() -> None:
    assert together("tests/cli/test_a.py::test_x[tests/system/a::b]") == "tests/cli/test_a.py"
    assert together("tests/cli/test_a.py::TestX::test_y") == "tests/cli/test_a.py"
    files = [f"{folder}/test_{name}.py::test_x" for folder in FOLDERS for name in "ab"]
    assert {together(nodeid) for nodeid in files} == set(FOLDERS)
    assert all((ROOT / folder).is_dir() for folder in FOLDERS)


def test_two_workers_keep_it_together(tmp_path: Path) -> None:
    """With the versions that are installed: a scheduler that is ignored fails no other test."""
    files = [
        tmp_path / folder / f"test_{number}_{name}.py"
        for number, folder in enumerate(FOLDERS)
        for name in "ab"
    ]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TESTS)
    words = ("-v", "-n2", "--dist=loadfile", "-p", "tests.conftest", "-c", "/dev/null")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--rootdir", tmp_path, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    ran = re.findall(r"\[(gw\d)\].* PASSED (\S+)::", done.stdout)
    assert len(ran) == 6 * len(files), done.stdout + done.stderr
    workers = {folder: {gw for gw, path in ran if folder in path} for folder in FOLDERS}
    assert [len(found) for found in workers.values()] == [1] * len(FOLDERS), done.stdout
