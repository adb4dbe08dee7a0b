"""A real Redis server for tests: loopback, ephemeral port, nothing on disk."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from tests.support.processes import ProcessDiedError, find_binary, free_port, stop, wait_ready


class RedisServer:
    """One server without persistence: a restart loses everything, as design.md §8.13 allows."""

    def __init__(self) -> None:
        """Starts the server. Raises ProcessDiedError when it does not come up."""
        self.folder = Path(tempfile.mkdtemp(prefix="weir-test-redis-"))
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        for attempt in range(5):
            self.port = free_port()
            try:
                self.start()
            except ProcessDiedError as error:
                if attempt == 4 or "in use" not in str(error):
                    self.close()
                    raise
            else:
                return

    @property
    def url(self) -> str:
        """The server's URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Starts the server on its port, again after `kill`."""
        log = self.folder / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    find_binary("redis-server"),
                    *("--port", str(self.port), "--bind", "127.0.0.1"),
                    *("--save", "", "--appendonly", "no", "--dir", str(self.folder)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        wait_ready(self._process, lambda: self._command("PING") == "+PONG", log, within_s=240)

    def flush(self) -> None:
        """Empties every database of the server."""
        answer = self._command("FLUSHALL")
        if answer != "+OK":
            raise RuntimeError(f"FLUSHALL: {answer!r}")

    def kill(self) -> None:
        """Ends the server; its content is lost."""
        if self._process is not None:
            stop(self._process)
            self._process = None

    def close(self) -> None:
        """Ends the server and removes its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self, name: str) -> str:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2) as connection:
                connection.sendall(f"{name}\r\n".encode())
                return connection.recv(256).decode().strip()
        except OSError as error:
            return str(error)
