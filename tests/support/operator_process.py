"""Operators as whole processes (`weir serve operator`), and a line to the API server to cut."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from tests.support.processes import ProcessDiedError, free_port, tail, wait_ready

# A leader that is gone is followed after 12 s. One that cannot renew ends at most 9.25 s after it
# last did: the deadline, the watchdog's grace and its beat. A busy machine holds a process up for
# seconds, and one that ends without a test's doing fails it: the deadline is no shorter.
SHORT_LEASE = {
    "LEASE_S": "12",
    "RENEW_DEADLINE_S": "8",
    "RETRY_S": "0.5",
    "LEASE_REQUEST_TIMEOUT_S": "3",
    "WRITE_TIMEOUT_S": "2.5",
}
# Of an operator that has no rival: however long a busy machine holds it up, it goes on.
PATIENT_LEASE = {"LEASE_S": "600", "RENEW_DEADLINE_S": "500"}
PROGRAM = ("-m", "weir_cli", "serve", "operator")


class OperatorProcess:
    """One replica: started, killed, stopped."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        kubeconfig: Path,
        namespace: str | None = None,
        control_plane_url: str = "http://127.0.0.1:9",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Starts nothing yet. It acts on ``namespace``, where its Lease is too; None: on all.

        One that acts on all namespaces has a Lease that no other operator has: it need not wait for
        the end of one that an earlier test's operator left.
        """
        self.name = name
        # What Python runs: a test may put a broken operator here before it starts it.
        self.program: Sequence[str] = PROGRAM
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{name}.log"
        self.user_agent = f"weir-operator/{name}"
        self.lease = "weir-operator" if namespace else f"weir-operator-{secrets.token_hex(4)}"
        self.process: subprocess.Popen[bytes] | None = None
        given = {
            "POD_NAME": name,
            "PORT": str(self.port),
            "KUBECONFIG": str(kubeconfig),
            "NAMESPACES": namespace or "",
            "LEASE_NAME": self.lease,
            "LEASE_NAMESPACE": namespace or "default",
            "CONTROL_PLANE_URL": control_plane_url,
            "CONTROL_PLANE_NAMESPACE": namespace or "default",
            "PROGRESS_INTERVAL_S": "0.5",
            "STATUS_INTERVAL_S": "0.2",
            **(settings or {}),
        }
        self.environment = {f"WEIR_OPERATOR_{key}": value for key, value in given.items()}

    def start(self, *, wait: bool = True) -> None:
        """Starts it; returns when it is ready."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *self.program],
                env={**inherited, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if wait:
            wait_ready(self.process, self.ready, self.log, within_s=240)

    def ready(self) -> bool:
        """Whether it says that it is ready."""
        return self.get("readyz").startswith("ok")

    def get(self, path: str) -> str:
        """What a probe says; empty without an answer."""
        try:
            return httpx.get(f"{self.url}/{path}", timeout=20, trust_env=False).text
        except httpx.TransportError:
            return ""

    def leads(self) -> bool:
        """Whether it may write now."""
        return "weir_operator_leader 1.0" in self.get("metrics")

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = (line for line in self.get("metrics").splitlines() if not line.startswith("#"))
        parts = (line.rsplit(" ", 1) for line in lines)
        return sum(float(value) for label, value in parts if label.partition("{")[0] == name)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process."""
        if self.process is None:
            raise ProcessDiedError(f"{self.name} was not started")
        self.process.send_signal(number)

    def wait(self, within_s: float) -> int:
        """The exit status; raises `subprocess.TimeoutExpired` when it does not end."""
        if self.process is None:
            raise ProcessDiedError(f"{self.name} was not started")
        return self.process.wait(within_s)

    def events(self) -> list[str]:
        """The names of what it logged."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [str(json.loads(line).get("event")) for line in lines if line.startswith("{")]

    def close(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def __repr__(self) -> str:
        return f"{self.name}\n{tail(self.log)}"


class CuttableLine:
    """A TCP relay to an address: it can stand still, as a network that loses every packet does."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._open = threading.Event()
        self._open.set()
        self._stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Nothing passes any more; connections stay open."""
        self._open.clear()

    def mend(self) -> None:
        """Everything passes again."""
        self._open.set()

    def close(self) -> None:
        """Ends all connections."""
        self._stop.set()
        self._open.set()
        self._listener.close()

    def kubeconfig(self, original: Path, path: Path) -> Path:
        """A kubeconfig like ``original`` that leads through this line."""
        found = json.loads(original.read_text())
        found["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.port}"
        path.touch(mode=0o600)
        path.write_text(json.dumps(found))
        return path

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                inside, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(inside,), daemon=True).start()

    def _relay(self, inside: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            inside,
            socket.create_connection(self._target) as outside,
            selectors.DefaultSelector() as selector,
        ):
            selector.register(inside, selectors.EVENT_READ, (inside, outside))
            selector.register(outside, selectors.EVENT_READ, (outside, inside))
            while not self._stop.is_set():
                self._open.wait()
                for key, _ in selector.select(0.2):
                    self._open.wait()
                    source, sink = key.data
                    data = source.recv(65536)
                    if not data:
                        return
                    sink.sendall(data)
