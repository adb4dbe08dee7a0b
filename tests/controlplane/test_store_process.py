"""The control plane as a process: start-up errors in one line, a clean end on SIGTERM."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import openai
import pytest
import structlog
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from tests.controlplane.plane_process import is_ready, start
from tests.controlplane.support import hanging, make_settings, running
from tests.support.processes import free_port, wait_ready
from tests.support.serving import serve
from tests.support.waiting import eventually
from weir_controlplane.http import install_errors
from weir_controlplane.logs import configure_logs
from weir_controlplane.store.database import Database


def a_tenants_key(url: str, data: Path) -> str:
    """The key of a new tenant of a process that keeps its admin key in ``data``."""
    admin = (data / "admin.key").read_text().strip()
    headers = {"Authorization": f"Bearer {admin}"}
    with httpx.Client(base_url=url, headers=headers, timeout=120) as client:
        assert client.post("/admin/v1/tenants", json={"name": "acme"}).status_code == 201
        return str(client.post("/admin/v1/keys", json={"tenant": "acme"}).json()["key"])


@pytest.mark.system
def test_it_serves_and_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    process = start(log, port=port, data_dir=tmp_path / "data")
    wait_ready(process, lambda: is_ready(f"http://127.0.0.1:{port}"), log, within_s=240)
    second = start(tmp_path / "log2", port=free_port(), data_dir=tmp_path / "data")
    assert second.wait(120) == 1
    refusal = (tmp_path / "log2").read_text()
    assert f"is held by process {process.pid}" in refusal  # §8.9
    assert "Traceback" not in refusal
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.system
def test_a_start_that_waits_for_its_database_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    """As process 1 of a container too, for which the system has no default handlers."""
    log = tmp_path / "log"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"postgresql+asyncpg://a:b@127.0.0.1:{silent.getsockname()[1]}/x"
        process = start(log, data_dir=tmp_path / "data", port=0, database_url=url)
        silent.settimeout(120)
        connection, _ = silent.accept()  # it is waiting for an answer now
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        connection.close()
    assert "told to before it served" in log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.system
def test_an_upload_that_runs_at_sigterm_is_finished(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    url = f"http://127.0.0.1:{port}"
    process = start(log, port=port, data_dir=tmp_path / "data")
    wait_ready(process, lambda: is_ready(url), log, within_s=240)
    key = a_tenants_key(url, tmp_path / "data")

    def body() -> Iterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
        yield from [bytes(1 << 20)] * 24  # more than the sockets hold: the server is reading
        process.send_signal(signal.SIGTERM)
        yield bytes(1000) + b"\r\n--b--\r\n"

    answer = httpx.post(
        f"{url}/v1/files",
        content=body(),
        headers={
            "Authorization": f"Bearer {key}",
            "Content-Type": "multipart/form-data; boundary=b",
        },
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["bytes"] == (24 << 20) + 1000
    assert process.wait(120) == 0
    assert "Traceback" not in log.read_text()


@pytest.mark.system
def test_a_file_store_that_hangs_keeps_no_process_from_its_end(tmp_path: Path) -> None:
    """Python waits for its threads for ever: it was killed at the end of its grace period."""
    port, log = free_port(), tmp_path / "log"
    url = f"http://127.0.0.1:{port}"
    process = start(log, port=port, data_dir=tmp_path / "data")
    wait_ready(process, lambda: is_ready(url), log, within_s=240)
    key = a_tenants_key(url, tmp_path / "data")
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key) as user:
        file = user.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
        (stored,) = (tmp_path / "data").rglob(file.id)
        with hanging(stored):
            user.batches.create(
                input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
            )
            assert eventually(lambda: opens_a_pipe(process.pid))
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
    assert "threads_abandoned" in log.read_text()


def opens_a_pipe(pid: int) -> bool:
    """Whether one of its threads waits for who writes to it, by the kernel's word for that."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return any((task / "wchan").read_text() == "wait_for_partner" for task in tasks)


@pytest.mark.system
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"host": "300.1.1.1"}, "host, port: 300.1.1.1:0 cannot be listened on"),
        ({"files_url": "gopher://x"}, "files_url"),
        ({"files_url": "http://127.0.0.1:{port}/"}, "nothing can be written to http://"),
        (
            {"database_url": "sqlite+aiosqlite:////proc/weir/weir.db"},
            "data_dir, database_url: /proc/weir cannot be written",
        ),
        ({"files_url": "file:///proc/weir"}, "files_url: /proc/weir cannot be used"),
        (
            {"database_url": "postgresql+asyncpg://a:b@127.0.0.1:{port}/x", "database_wait_s": "0"},
            "database_url: cannot be reached",
        ),
        (
            {"database_url": "postgresql+asyncpg://a:b@127.0.0.1:{port}/x?ssl=maybe"},
            "database_url: cannot be connected with: ",
        ),
    ],
)
def test_a_start_that_cannot_work_says_why_in_one_line(
    tmp_path: Path, settings: dict[str, str], expected: str
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        port = closed.getsockname()[1]
        given = {name: value.format(port=port) for name, value in settings.items()}
        process = start(tmp_path / "log", data_dir=tmp_path / "data", port=0, **given)
        assert process.wait(120) == 1
    text = (tmp_path / "log").read_text()
    assert expected in text
    assert "Traceback" not in text


@pytest.fixture
def loggers() -> Iterator[None]:
    """Structlog and logging, put back as they were."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("loggers")
@pytest.mark.parametrize("speaker", [structlog.get_logger(), logging.getLogger("uvicorn.error")])
def test_logs_tell_of_errors_by_place_alone(
    capsys: pytest.CaptureFixture[str], speaker: logging.Logger
) -> None:
    """§8, Security: logs carry ids, never prompts."""
    configure_logs("info")

    def fail(prompt: str) -> None:
        raise RuntimeError(prompt)

    try:
        try:
            fail("once upon a time")
        except RuntimeError as error:
            raise ValueError("there was: once upon a time") from error
    except ValueError:
        speaker.exception("failed for batch_1")
    logged = capsys.readouterr().out
    assert "failed for batch_1" in logged
    assert "ValueError, raised at" in logged
    assert "after RuntimeError, raised at" in logged
    assert f"{Path(__file__).name}:" in logged
    assert " in fail" in logged
    assert "once upon" not in logged


@pytest.mark.usefixtures("loggers")
async def test_a_request_that_fails_unexpectedly_leaves_nothing_of_it_in_the_log(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configure_logs("info")

    def fail(*arguments: object) -> None:
        raise RuntimeError(arguments)

    async with (
        running(make_settings(tmp_path)) as plane,
        plane.client(await plane.tenant_key("acme")) as client,
    ):
        monkeypatch.setattr("weir_controlplane.batches.endpoints.create_batch", fail)
        answer = await client.post(
            "/v1/batches",
            json={
                "input_file_id": "file-1",
                "endpoint": "/v1/completions",
                "completion_window": "24h",
                "metadata": {"note": "once upon a time"},
            },
        )
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "internal error; the log has the details"
    logged = capsys.readouterr().out
    assert "unexpected_error" in logged
    assert logged.count("RuntimeError, raised at") == 1
    assert "once upon" not in logged


@pytest.mark.usefixtures("loggers")
async def test_an_answer_that_breaks_off_is_told_once_and_is_no_whole_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs("info")
    app = FastAPI()
    install_errors(app)

    @app.get("/")
    async def half() -> StreamingResponse:
        async def content() -> AsyncIterator[bytes]:
            yield b"half"
            raise RuntimeError("once upon a time")

        return StreamingResponse(content())

    async with serve(app) as url, httpx.AsyncClient() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(url)
    logged = capsys.readouterr().out
    assert logged.count("RuntimeError, raised at") == 1
    assert "once upon" not in logged


async def test_database_errors_show_no_values(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'weir.db'}")
    await database.open()
    with pytest.raises(SQLAlchemyError) as caught:
        async with database.read() as session:
            await session.execute(text("SELECT nothing WHERE 1 = :x"), {"x": "once upon a time"})
    await database.close()
    assert "once upon" not in str(caught.value)
