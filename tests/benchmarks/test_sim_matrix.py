"""The matrix in virtual time judges what is deployed: preset weir, with all of its parts."""

from dataclasses import replace
from unittest.mock import patch

from benchmarks.sim_matrix import cells
from benchmarks.sim_matrix.cells import Cell
from weir_engine.config import Metric, Slo
from weir_engine.presets import build_scheduler


def test_the_weir_arm_is_the_preset_and_the_others_are_not() -> None:
    slo = Slo(metric=Metric.TTFT, statistic="p99", threshold_s=0.5)
    weir = Cell(trace="steady", slos=(slo,), online=True, offline=True, seconds=22, seed=1)
    stock = replace(weir, arm="fixed:64")
    with patch("weir_engine.sim.preset_run.build_scheduler", wraps=build_scheduler) as built:
        assert cells.run(weir).served_tokens_s > 0
        assert [call.args for call in built.call_args_list] == [("weir",)]
        assert cells.run(stock).served_tokens_s > 0
        assert built.call_count == 1
