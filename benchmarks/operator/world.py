"""A real API server with its controllers, a control plane on SQLite, and one operator."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from kubernetes.client import CustomObjectsApi
from kubernetes.config import new_client_from_config

from benchmarks.operator.workload import MODEL
from e2e.cluster.api_server import ApiServer
from e2e.cluster.binaries import Binaries
from tests.support.operator_process import OperatorProcess
from tests.support.stack import Component
from tests.support.waiting import eventually

CRDS = Path(__file__).resolve().parents[2] / "crds"
START_S = 120.0
KIBIBYTES_A_MEBIBYTE = 1024


class World:
    """Started as a context, ended whatever happens."""

    def __init__(self, folder: Path, *, batches: int) -> None:
        """``batches``: how many a tenant may have."""
        self.cluster = ApiServer(folder, Binaries())
        self.controlplane = Component(
            "controlplane",
            folder,
            {
                "WEIR_DATA_DIR": str(folder / "controlplane"),
                "WEIR_DEFAULT_TENANT": "benchmark",
                "WEIR_TENANT_MAX_BATCHES": str(batches),
                "WEIR_MODELS": MODEL,
                "WEIR_LOG_LEVEL": "warning",
            },
        )
        self.operator = OperatorProcess(
            "operator-0",
            folder,
            kubeconfig=self.cluster.kubeconfig,
            control_plane_url=self.controlplane.url,
            settings={
                "CONTROL_PLANE_TOKEN_FILE": str(folder / "controlplane" / "admin.key"),
                "PROGRESS_INTERVAL_S": "5",  # as in a cluster: tests have shorter ones
                "STATUS_INTERVAL_S": "5",
            },
        )
        self._objects: Any = None

    def __enter__(self) -> Self:
        """Returns when everything is ready and the operator leads.

        Raises:
            RuntimeError: the operator does not lead; its log says why.
        """
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        self.cluster.start()
        self.cluster.apply_crds(CRDS)
        config = str(self.cluster.kubeconfig)
        self._objects = CustomObjectsApi(
            new_client_from_config(config_file=config)  # type: ignore[no-untyped-call]
        )
        self.controlplane.start()
        self.operator.start()
        if not eventually(self.operator.leads, within_s=START_S):
            raise RuntimeError(f"the operator does not lead: {self.operator}")

    def __exit__(self, *_: object) -> None:
        """Ends every process."""
        self.operator.close()
        self.controlplane.close()
        self.cluster.close()

    def create(self, manifests: Iterable[Mapping[str, Any]]) -> None:
        """Creates objects, as fast as kubectl does."""
        whole = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.cluster.kubectl.run("create", "-f", "-", "--output=name", stdin=json.dumps(whole))

    def observed(self) -> int:
        """How many objects carry what a user waits for.

        Of an LLMService: children applied. Of a BatchJob: accepted, and its batch's id.
        """
        services = self._list("llmservices")
        jobs = self._list("batchjobs")
        done = sum(_is_true(item, "Configured") for item in services)
        return done + sum(
            _is_true(item, "Accepted") and "batchID" in item["status"] for item in jobs
        )

    def memory_mib(self) -> tuple[float, float]:
        """Resident memory of the operator: now, and at its peak."""
        found = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{self._pid}/status").read_text().splitlines()
        )
        kibibytes = (int(found[name].split()[0]) for name in ("VmRSS", "VmHWM"))
        now, peak = (value / KIBIBYTES_A_MEBIBYTE for value in kibibytes)
        return now, peak

    def cpu_s(self) -> float:
        """Seconds of processor time that the operator has used."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def failures(self) -> dict[str, int]:
        """What the operator logged as a warning or worse, by event."""
        found: dict[str, int] = {}
        for line in self.operator.log.read_text().splitlines():
            said = json.loads(line) if line.startswith("{") else {"event": line, "level": "error"}
            if said.get("level") in {"warning", "error", "critical"}:
                found[said["event"]] = found.get(said["event"], 0) + 1
        return found

    @property
    def _pid(self) -> int:
        if self.operator.process is None:
            raise RuntimeError("the operator was not started")
        return self.operator.process.pid

    def _list(self, plural: str) -> list[dict[str, Any]]:
        found = self._objects.list_cluster_custom_object("weir.dev", "v1alpha1", plural)
        items: list[dict[str, Any]] = found["items"]
        return items


def _is_true(item: Mapping[str, Any], kind: str) -> bool:
    status = item.get("status") or {}
    return any(
        condition["type"] == kind
        and condition["status"] == "True"
        and condition["observedGeneration"] == item["metadata"]["generation"]
        for condition in status.get("conditions", ())
    )
