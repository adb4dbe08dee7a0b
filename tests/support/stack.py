"""Weir as whole processes: a control plane and an agent with a real engine, killed and restarted.

Everything runs as an administrator would start it (`weir serve …` with WEIR_* variables), on ports
that stay the same over restarts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes import ProcessDiedError, free_port, tail, wait_ready
from weir_cli.api import Api
from weir_cli.loadlab.process_tree import descendants, find_descendant
from weir_cli.loadlab.processes import ENGINE_PROCESS
from weir_cli.loadlab.processor import native_dtype
from weir_cli.models import KeyRequest
from weir_cli.settings import ClientSettings

MODEL = "sample"
DISK_BYTES = 32 << 20
KILLER = Path(__file__).resolve().parent / "killer"
ENGINE_ARGS = (
    f"--served-model-name {MODEL} --enforce-eager --dtype {native_dtype()} --block-size 32 "
    "--num-gpu-blocks-override 256 --max-model-len 1024 --max-num-seqs 16 "
    "--max-num-batched-tokens 512"
)
# As loose as the engine takes: without any, batches beside online requests would go slowly.
SLO = json.dumps(
    [
        {"metric": "ttft", "statistic": "p99", "threshold_s": 5},
        {"metric": "tbt", "statistic": "p99", "threshold_s": 2},
    ]
)


class Component:
    """One `weir serve` process: started, killed, started again on the same port and folder."""

    def __init__(
        self, name: str, folder: Path, environment: Mapping[str, str], *, disk: Path | None = None
    ) -> None:
        """Starts nothing yet. ``folder`` gets the log; ``disk`` becomes a disk of 32 MB."""
        self.name = name
        self.disk = disk
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{name}.log"
        self.environment = dict(environment)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> None:
        """Starts the process; returns when it is ready."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("WEIR_")}
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [*self._own_disk(), sys.executable, "-m", "weir_cli", "serve", self.name],
                env={**inherited, **self.environment, "WEIR_PORT": str(self.port)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if wait:
            self.wait_ready()

    def _own_disk(self) -> list[str]:
        """A command prefix that mounts the small disk where only this process sees it."""
        if self.disk is None:
            return []
        self.disk.mkdir(exist_ok=True)
        mount = f'mount -t tmpfs -o size={DISK_BYTES} tmpfs "$0" && exec "$@"'
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        return ["unshare", "--mount", *user, "sh", "-c", mount, str(self.disk)]

    @contextlib.contextmanager
    def full_disk(self) -> Iterator[None]:
        """While open, the small disk has not a byte left."""
        if self.disk is None or self.process is None:
            raise ProcessDiedError(f"{self.name} has no disk of its own")
        filler = Path(f"/proc/{self.process.pid}/root{self.disk}/filler")
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        try:
            yield
        finally:
            filler.unlink()

    def wait_ready(self, within_s: float = 280) -> None:
        """Returns when the process says that it is ready."""
        if self.process is None:
            raise ProcessDiedError(f"{self.name} was not started")
        wait_ready(self.process, self.ready, self.log, within_s=within_s)

    def ready(self) -> bool:
        """Whether `/readyz` answers 200 now."""
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """SIGKILL to the process itself; what it leaves behind must go by itself."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def terminate(self, *, within_s: float = 240) -> int:
        """SIGTERM; the exit status."""
        if self.process is None:
            raise ProcessDiedError(f"{self.name} was not started")
        self.process.terminate()
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise ProcessDiedError(f"{self.name} ignores SIGTERM\n{tail(self.log)}") from None

    def close(self) -> None:
        """Ends the process and everything under it."""
        if self.process is None:
            return
        tree = descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pid in tree[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Stack:
    """A control plane with its own database and files, and one agent with a tiny model."""

    def __init__(
        self,
        folder: Path,
        model: Path,
        *,
        controlplane: Mapping[str, str] | None = None,
        agent: Mapping[str, str] | None = None,
        disks: Mapping[str, Path] | None = None,
    ) -> None:
        """Starts both processes. The mappings add WEIR_* settings, and small disks by component."""
        small = disks or {}
        self.folder = folder
        self.controlplane = Component(
            "controlplane",
            folder,
            {
                "WEIR_DATA_DIR": str(folder / "controlplane"),
                "WEIR_CHUNK_LINES": "16",
                "WEIR_POLL_S": "0.5",
                **(controlplane or {}),
            },
            disk=small.get("controlplane"),
        )
        self.agent = Component(
            "agent",
            folder,
            {
                "WEIR_DATA_DIR": str(folder / "agent"),
                "WEIR_AGENT_ID": "agent-1",
                "WEIR_ENGINE_ARGS": f"--model {model} {ENGINE_ARGS}",
                "WEIR_CONTROL_PLANE_URL": self.controlplane.url,
                "WEIR_RESTART_BACKOFF_S": "0.1",
                "WEIR_SLO": SLO,
                "PYTHONPATH": str(KILLER),
                "OMP_NUM_THREADS": "1",  # more threads than free cores cost more than they give
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "HF_HUB_OFFLINE": "1",
                **(agent or {}),
            },
            disk=small.get("agent"),
        )
        self._keys: dict[str, str] = {}
        self._clients: dict[str, OpenAI] = {}
        try:
            self.controlplane.start()
            self.agent.environment["WEIR_CONTROL_PLANE_KEY"] = self._key(
                KeyRequest(scope="agent", agent_id="agent-1")
            )
            self.agent.start()
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def admin(self) -> Iterator[Api]:
        """The admin API, with the first admin key."""
        key = (self.folder / "controlplane" / "admin.key").read_text().strip()
        api = Api(ClientSettings.model_validate({"url": self.controlplane.url, "api_key": key}))
        try:
            yield api
        finally:
            api.close()

    def _key(self, request: KeyRequest) -> str:
        with self.admin() as api:
            return api.create_key(request).key

    def key(self, tenant: str = "tenant-1") -> str:
        """The API key of a tenant, which is made on first use."""
        if tenant not in self._keys:
            with self.admin() as api:
                api.create_tenant(tenant)
            self._keys[tenant] = self._key(KeyRequest(scope="tenant", tenant=tenant))
        return self._keys[tenant]

    def client(self, tenant: str = "tenant-1") -> OpenAI:
        """The unmodified client, with a tenant's key; closed with the stack."""
        if tenant not in self._clients:
            url = f"{self.controlplane.url}/v1"
            self._clients[tenant] = OpenAI(base_url=url, api_key=self.key(tenant))
        return self._clients[tenant]

    def online(self) -> OpenAI:
        """The unmodified client on the agent's own endpoint; closed with the stack."""
        if "" not in self._clients:
            url = f"{self.agent.url}/v1"
            self._clients[""] = OpenAI(base_url=url, api_key="unused", max_retries=0)
        return self._clients[""]

    def agent_states(self) -> set[str]:
        """The states in which the control plane counts its agents now."""
        page = httpx.get(f"{self.controlplane.url}/metrics", timeout=60).text
        return {
            sample.labels["state"]
            for family in text_string_to_metric_families(page)
            if family.name == "weir_agents"
            for sample in family.samples
            if sample.value
        }

    def engine_pid(self) -> int | None:
        """The process that computes; None while there is none."""
        if self.agent.process is None:
            return None
        return find_descendant(self.agent.process.pid, ENGINE_PROCESS)

    def kill_engine(self) -> None:
        """SIGKILL to the engine process."""
        pid = self.engine_pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends everything."""
        for client in self._clients.values():
            client.close()
        self.agent.close()
        self.controlplane.close()
