"""Symbolic links in folders of `file://` URIs, which a tenant may change while they are used."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from weir_controlplane.errors import StorageError
from weir_controlplane.uris.rules import UriRefusedError, parse_uri
from weir_controlplane.uris.transfer import BLOCK_BYTES, UriAccess, UriUnreadableError

OWN, SECRET = b"own\n", b"secret of another tenant\n"


@pytest.fixture
def team(tmp_path: Path) -> Path:
    """A tenant's folder, with an input of several blocks; beside it another tenant's."""
    for name, content in (("team", OWN), ("other", SECRET)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "in.jsonl").write_bytes(content * (3 * BLOCK_BYTES // len(content)))
    return tmp_path / "team"


async def read(path: Path, prefix: Path, after_block: Callable[[], None] | None = None) -> bytes:
    found = b""
    async for block in UriAccess().read(parse_uri(f"file://{path}"), parse_uri(f"file://{prefix}")):
        if after_block is not None and not found:
            after_block()
        found += block
    return found


async def write(path: Path, prefix: Path, before_block: Callable[[], None] | None = None) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        if before_block is not None:
            before_block()
        yield OWN

    uri, allowed = parse_uri(f"file://{path}"), parse_uri(f"file://{prefix}")
    await UriAccess().write(uri, allowed, blocks())


def swap(path: Path) -> None:
    """Puts a link to what the other tenant has by this name in its place."""
    if path.is_symlink():
        return
    path.rename(path.with_name("before"))
    path.symlink_to(path.parent.parent / "other" / path.name)


def swapping(path: Path, *, after: int) -> Callable[..., str]:
    """`os.path.realpath`, with a tenant who swaps ``path`` once it has been asked so often."""
    real, left = os.path.realpath, [after]

    def found(asked: str) -> str:
        path_found = real(asked)
        left[0] -= 1
        if left[0] == 0:
            swap(path)
        return path_found

    return found


async def test_a_link_put_in_place_of_a_file_that_is_read_leads_nowhere(team: Path) -> None:
    whole = (team / "in.jsonl").read_bytes()
    found = await read(team / "in.jsonl", team, lambda: swap(team / "in.jsonl"))
    assert (team / "in.jsonl").is_symlink()
    assert found == whole


@pytest.mark.parametrize("swapped", ["in.jsonl", "folder"])
@pytest.mark.parametrize("after", [1, 2])
async def test_a_link_put_in_place_before_the_first_block_leads_nowhere(
    team: Path, monkeypatch: pytest.MonkeyPatch, swapped: str, after: int
) -> None:
    name = "in.jsonl" if swapped == "in.jsonl" else "folder/in.jsonl"
    for folder in (team / "folder", team.parent / "other" / "folder"):
        folder.mkdir()
        (folder / "in.jsonl").write_bytes((folder.parent / "in.jsonl").read_bytes())
    monkeypatch.setattr(os.path, "realpath", swapping(team / swapped, after=after))
    with pytest.raises((UriRefusedError, StorageError)):
        await read(team / name, team)
    assert (team / swapped).is_symlink()


@pytest.mark.parametrize("after", [1, 2, 3])
async def test_a_link_put_in_place_of_the_folder_of_an_output_leads_nowhere(
    team: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    for folder in (team / "out", team.parent / "other" / "out"):
        folder.mkdir()
    monkeypatch.setattr(os.path, "realpath", swapping(team / "out", after=after))
    with contextlib.suppress(UriRefusedError, StorageError):
        await write(team / "out" / "output.jsonl", team)
    assert (team / "out").is_symlink()
    assert list((team.parent / "other" / "out").iterdir()) == []


async def test_an_output_goes_to_the_folder_that_was_there_when_it_began(team: Path) -> None:
    (team.parent / "other" / "out").mkdir()
    await write(team / "out" / "output.jsonl", team, lambda: swap(team / "out"))
    assert list((team.parent / "other" / "out").iterdir()) == []
    assert [item.name for item in (team / "before").iterdir()] == ["output.jsonl"]


async def test_an_output_is_not_written_through_a_link_that_leads_out(team: Path) -> None:
    (team / "out").symlink_to(team.parent / "other")
    with pytest.raises(UriRefusedError, match="symbolic link"):
        await write(team / "out" / "output.jsonl", team)


async def test_links_that_stay_in_a_prefix_and_lead_to_it_work(team: Path, tmp_path: Path) -> None:
    """An administrator's lead to the folder, and a tenant's from one name in it to another."""
    (tmp_path / "mount").symlink_to(team)
    prefix = tmp_path / "mount"
    (team / "today").mkdir()
    (team / "latest").symlink_to("today")
    (team / "today" / "link.jsonl").symlink_to(team / "in.jsonl")
    assert await read(prefix / "latest" / "link.jsonl", prefix) == (team / "in.jsonl").read_bytes()
    await write(prefix / "latest" / "a" / "output.jsonl", prefix)
    assert (team / "today" / "a" / "output.jsonl").read_bytes() == OWN


async def test_a_prefix_may_be_one_object(team: Path) -> None:
    for path in (team / "in.jsonl", team / "new" / "output.jsonl"):
        await write(path, path)
        assert await read(path, path) == OWN


@pytest.mark.parametrize("name", ["nothing", "folder", "pipe", "in.jsonl/part", "n" * 300])
async def test_what_is_no_file_is_no_object(team: Path, name: str) -> None:
    (team / "folder").mkdir()
    os.mkfifo(team / "pipe")
    with pytest.raises(UriUnreadableError, match="no such object"):
        await read(team / name, team)


async def test_nothing_stays_open(team: Path) -> None:
    before = open_files()
    for number in range(8):
        await read(team / "in.jsonl", team)
        await write(team / f"out-{number}" / "output.jsonl", team)
        with pytest.raises(UriUnreadableError):
            await read(team / "nothing", team)
    assert open_files() <= before + 1


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
