"""A real Prometheus for tests: scrapes what it is told, holds everything in one folder."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.processes import find_binary, free_port, stop, wait_ready


class PrometheusServer:
    """One server on a loopback port. Start it once; `close` ends it."""

    def __init__(
        self,
        folder: Path,
        *,
        targets: Mapping[str, Mapping[str, str]],
        rules: str | None = None,
        interval: str = "1s",
    ) -> None:
        """``targets``: labels by ``host:port``; ``rules``: the text of a rule file.

        Raises:
            ProcessDiedError: it does not come up; the message has its log.
        """
        self.folder = folder
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None
        configuration = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "scrape_configs": [
                {
                    "job_name": "weir",
                    "static_configs": [
                        {"targets": [target], "labels": dict(labels)}
                        for target, labels in targets.items()
                    ],
                }
            ],
        }
        if rules is not None:
            (folder / "rules.yaml").write_text(rules)
            configuration["rule_files"] = ["rules.yaml"]
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
        self._start()

    def _start(self) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        log = self.folder / "prometheus.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    find_binary("prometheus"),
                    f"--config.file={self.folder / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={self.folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    "--log.level=warn",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        wait_ready(self._process, self._ready, log, within_s=240)

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The samples of an expression now. Raises ValueError when Prometheus refuses it."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expr}, timeout=60).json()
        if answer["status"] != "success":
            raise ValueError(f"{answer['error']}: {expr}")
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def firing(self) -> set[str]:
        """The names of the alerts that fire now."""
        answer = httpx.get(f"{self.url}/api/v1/alerts", timeout=60).json()
        alerts: Sequence[Mapping[str, Any]] = answer["data"]["alerts"]
        return {item["labels"]["alertname"] for item in alerts if item["state"] == "firing"}

    def close(self) -> None:
        """Ends the server."""
        if self._process is not None:
            stop(self._process)
            self._process = None
