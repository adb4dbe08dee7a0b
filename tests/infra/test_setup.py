"""`make setup` on a machine that lacks something: it installs it, or names it with the remedy."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import unprivileged_user

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("bash", "dirname", "uname", "mktemp", "rm", "tail", "cmp", "cp", "env", "touch", "cat")
FAKE_APT = '#!/bin/bash\necho "$@" >>"$(dirname "$0")/apt.log"\necho "no such package"\nexit 1\n'
FAKE_SUDO = '#!/bin/bash\n[[ $1 == -n ]] && shift\n[[ $1 == true ]] || exec "$@"\n'


class Machine:
    """A copy of the script on a machine with a few tools and no redis-server."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None
            (self.bin / tool).symlink_to(found)
        self.add("python3", "#!/bin/bash\nexit 0\n")
        (folder / "scripts").mkdir()
        self.script = folder / "scripts" / "setup.sh"
        shutil.copy(ROOT / "scripts" / "setup.sh", self.script)

    def add(self, name: str, content: str) -> None:
        (self.bin / name).write_text(content)
        (self.bin / name).chmod(0o755)

    def run(self, *, user: str | None = None) -> str:
        done = subprocess.run(
            ["bash", self.script],
            env={"PATH": str(self.bin)},
            user=user,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        return done.stderr


@pytest.fixture
def machine() -> Iterator[Machine]:
    folder = Path(tempfile.mkdtemp(prefix="weir-test-setup-"))  # open to other users
    folder.chmod(0o755)
    yield Machine(folder)
    shutil.rmtree(folder)


def test_without_apt_get_the_missing_thing_is_named(machine: Machine) -> None:
    said = machine.run()
    assert "missing: redis-server" in said
    assert "no apt-get" in said


def test_without_root_the_command_to_run_is_shown(machine: Machine) -> None:
    machine.add("apt-get", FAKE_APT)
    said = machine.run(user=unprivileged_user())
    assert "Run: sudo apt-get update && sudo apt-get install -y redis-server" in said


def test_lists_are_updated_before_anything_is_installed(machine: Machine) -> None:
    machine.add("apt-get", FAKE_APT.replace("exit 1", '[[ "$1" == update ]]'))
    machine.add("sudo", FAKE_SUDO)
    said = machine.run()
    calls = (machine.bin / "apt.log").read_text().splitlines()
    assert calls[0] == "update"
    assert calls[1].startswith("install -y --no-install-recommends redis-server")
    assert "no such package" in said
    assert "could not install redis-server" in said


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (None, "python3 is missing: install Python 3.11"),
        (
            "#!/bin/bash\n[[ $1 == --version ]] && echo Python 3.9.2; exit 1\n",
            "Python 3.9.2 is not",
        ),
        ("#!/bin/bash\n[[ $2 != *venv* ]]\n", "has no venv module"),
    ],
)
def test_an_unfit_python_is_named(machine: Machine, python: str | None, said: str) -> None:
    (machine.bin / "python3").unlink()
    if python is not None:
        machine.add("python3", python)
    assert said in machine.run()
