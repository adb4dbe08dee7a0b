"""What all runs of a comparison share, and the process that agents are forked from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.colocation.pace import paced_window, paced_workload
from benchmarks.colocation.setup import CPU, Host, Workload, environment
from weir_cli.loadlab.measure import Window
from weir_cli.loadlab.processes import Cores, Zygote


class AgentZygote:
    """The process that agents are forked from, started when the first is wanted."""

    def __init__(self, host: Host = CPU) -> None:
        self._host = host
        self._zygote: Zygote | None = None

    def get(self) -> Zygote:
        """The process; the first call takes as long as importing vLLM.

        Raises:
            ServerError: the agent cannot be imported.
        """
        if self._zygote is None:
            self._zygote = Zygote(
                "weir_agent.vllm_bridge.environment:preload",
                "weir_agent.main:run",
                environment=environment(self._host),
            )
        return self._zygote

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self._zygote is not None:
            self._zygote.stop()
            self._zygote = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What all runs share. ``say`` prints a progress line.

    ``pace``: how many times as far apart the online requests come; ``window`` has it already.
    """

    model: Path
    folder: Path
    cores: Cores
    window: Window
    seed: int
    say: Callable[[str], None]
    agents: AgentZygote
    pace: float = 1.0
    host: Host = CPU

    def workload(self, name: str) -> Workload:
        """A workload at this machine's pace."""
        return paced_workload(self.host.workloads[name], self.pace)

    def at(self, pace: float) -> Bench:
        """The same at a pace, for one that has none yet."""
        return replace(self, window=paced_window(self.window, pace), pace=pace)
