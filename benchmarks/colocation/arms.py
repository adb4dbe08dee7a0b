"""The arms: which server, which loads, in which order. Data only; `runner` executes them."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.colocation.cells import Cell
from benchmarks.colocation.setup import CPU, EngineSetup
from weir_cli.loadlab.workload import OfflineOrder

FIXED_TOKENS = (48, 64, 128, 256, 2048)


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One way to serve both classes.

    ``order`` None: no offline load. ``control`` says who throttles offline work: ``none``, ``aimd``
    (a gateway) or ``weir``; the latter two run once a cell. ``aim``: the share of an SLO's
    tolerance over its reference that a gateway lets the last seconds use.
    """

    name: str
    engine: EngineSetup
    online: bool = True
    order: OfflineOrder | None = None
    control: str = "none"
    aim: float = 1.0

    @property
    def per_cell(self) -> bool:
        """True when the arm is told the cell's SLO."""
        return self.control != "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run to make: an arm on a workload, for a cell where the arm needs one."""

    workload: str
    arm: Arm
    cell: Cell | None
    repeat: int

    @property
    def key(self) -> str:
        """Names the run's file."""
        cell = self.cell.name.replace("/", "-").replace("%", "") if self.cell else "any"
        return f"{self.workload}.{self.arm.name}.{cell}.r{self.repeat}"


ONLINE_ONLY = Arm(name="online-only", engine=EngineSetup())
CEILING = Arm(name="offline-prefix", engine=EngineSetup(), online=False, order=OfflineOrder.PREFIX)
WEIR = Arm(
    name="weir",
    engine=EngineSetup(scheduler="weir"),
    order=OfflineOrder.PREFIX,
    control="weir",
)


WEIR_END_TO_END = Arm(
    name="weir-end-to-end",
    engine=EngineSetup(scheduler="weir", real_control_plane=True),
    order=OfflineOrder.SHUFFLED,
    control="weir",
)
"""The real control plane with batches in shuffled order; it runs only when it is named."""


def gateway_arms() -> list[Arm]:
    """AIMD that aims at the SLO itself, and cautious ones: who aims at an SLO is often over it."""
    return [
        Arm(
            name=name,
            engine=EngineSetup(),
            order=OfflineOrder.PREFIX,
            control="aimd",
            aim=aim,
        )
        for name, aim in (("aimd", 1.0), ("aimd-50", 0.5), ("aimd-25", 0.25))
    ]


def static_arms(tokens: tuple[int, ...] = CPU.static_tokens) -> list[Arm]:
    """Stock priority in prefix order at several step sizes."""
    return [
        Arm(
            name=f"static-{count}",
            engine=EngineSetup(batched_tokens=count),
            order=OfflineOrder.PREFIX,
        )
        for count in tokens
    ]


def fixed_arms(tokens: tuple[int, ...] = FIXED_TOKENS) -> list[Arm]:
    """Repaired priority in prefix order at several step sizes."""
    return [
        Arm(
            name=f"fixed-{count}",
            engine=EngineSetup(scheduler="fixed", batched_tokens=count),
            order=OfflineOrder.PREFIX,
        )
        for count in tokens
    ]


def all_arms(static_tokens: tuple[int, ...] = CPU.static_tokens) -> list[Arm]:
    """Every arm of the first workload, in the order in which they run."""
    stock = EngineSetup()
    return [
        ONLINE_ONLY,
        CEILING,
        Arm(
            name="offline-fcfs",
            engine=stock,
            online=False,
            order=OfflineOrder.SHUFFLED,
        ),
        Arm(name="stock-priority", engine=stock, order=OfflineOrder.SHUFFLED),
        Arm(name="stock-priority-prefix", engine=stock, order=OfflineOrder.PREFIX),
        WEIR,
        WEIR_END_TO_END,
        *static_arms(static_tokens),
        *fixed_arms(),
        Arm(name="stock-fcfs", engine=EngineSetup(policy="fcfs"), order=OfflineOrder.SHUFFLED),
        *gateway_arms(),
    ]


def pressure_arms() -> list[Arm]:
    """The arms of the second workload: stock eviction at several step sizes against Weir."""
    return [
        ONLINE_ONLY,
        CEILING,
        Arm(name="stock-priority-prefix", engine=EngineSetup(), order=OfflineOrder.PREFIX),
        WEIR,
        *static_arms((16, 24, 32, 48, 64, 96)),
        *fixed_arms((128,)),
    ]
