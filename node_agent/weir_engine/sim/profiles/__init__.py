"""Hardware profiles: measured times of GPU steps as data with their origin, and nothing else."""

from weir_engine.sim.profiles.attention import StepBatch
from weir_engine.sim.profiles.catalogue import PROFILES, load_profile
from weir_engine.sim.profiles.hardware import CpuLane, Gpu, HardwareProfile, ModelShape, Origin
from weir_engine.sim.profiles.timing import KernelTiming, StepTime, Timing

__all__ = [
    "PROFILES",
    "CpuLane",
    "Gpu",
    "HardwareProfile",
    "KernelTiming",
    "ModelShape",
    "Origin",
    "StepBatch",
    "StepTime",
    "Timing",
    "load_profile",
]
