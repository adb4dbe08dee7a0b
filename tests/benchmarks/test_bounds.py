from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks import sim_speed, sync


@pytest.mark.parametrize(
    ("main", "given", "said"),
    [
        (sync.main, ["--agents", "0"], "--agents: must be 1 or more"),
        (sync.main, ["--seconds", "nan"], "--seconds: must be 1 s or more"),
        (sim_speed.main, ["--seconds", "inf"], "--seconds: must be 1 s or more"),
        (sim_speed.main, ["--seeds", "many"], "--seeds: invalid count value: 'many'"),
    ],
)
def test_what_no_run_can_use_is_refused_by_its_name(
    main: Callable[[list[str]], object],
    given: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(given)
    assert refused.value.code == 2
    assert said in capsys.readouterr().err
