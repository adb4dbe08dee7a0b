"""What the demo runs and how it judges: the same load in every arm, an SLO from online alone."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.support.serving import serve_in_thread
from weir_cli.api import Api
from weir_cli.demo import plan
from weir_cli.demo.run import beside, reach_loopback_directly, slo_of
from weir_cli.demo.slo import objectives, unanswered, verdict
from weir_cli.demo.trace import bundled_trace
from weir_cli.errors import CliError
from weir_cli.loadlab.measure import Measurement
from weir_cli.loadlab.records import LatencyStats, OnlineLatency
from weir_cli.settings import ClientSettings
from weir_controlplane.main import default_app
from weir_controlplane.settings import Settings


def stats(mean_s: float, p99_s: float) -> LatencyStats:
    return LatencyStats(count=9, mean_s=mean_s, p50_s=mean_s, p90_s=p99_s, p99_s=p99_s)


ALONE = Measurement(
    window_s=40.0,
    online=OnlineLatency(
        requests=9,
        failed=0,
        ttft=stats(0.1, 0.4),
        tbt=stats(0.01, 0.04),
        tpot=stats(0.01, 0.04),
    ),
    online_tokens_per_s=100.0,
    offline_served_per_s=0.0,
    offline_computed_per_s=0.0,
    online_hit_rate=0.0,
    steps_per_s=10.0,
    busy_share=0.2,
    client_cpu_share=0.1,
    preemptions=0,
    offline_errors=0,
    errors=(),
    ended_s=1.8e9,
)


def slower(measurement: Measurement, *, tbt: LatencyStats) -> Measurement:
    return replace(measurement, online=replace(measurement.online, tbt=tbt))


def test_the_slo_is_online_alone_plus_a_tolerance() -> None:
    wanted = objectives(ALONE, tolerance=0.5)
    found = {(o.metric, o.statistic): o.threshold_s for o in wanted}
    assert found == pytest.approx(
        {
            ("ttft", "mean"): 0.15,
            ("ttft", "p99"): 0.6,
            ("tbt", "mean"): 0.015,
            ("tbt", "p99"): 0.06,
        }
    )


def test_an_objective_that_was_not_measured_is_left_out() -> None:
    wanted = objectives(slower(ALONE, tbt=stats(nan, nan)), tolerance=0.5)
    assert {objective.metric for objective in wanted} == {"ttft"}


def test_the_verdict_names_what_is_missed_and_by_how_much() -> None:
    wanted = objectives(ALONE, tolerance=0.5)
    assert verdict(ALONE, wanted) == "holds the SLO"
    late = slower(ALONE, tbt=stats(0.012, 0.18))
    assert verdict(late, wanted) == "over the SLO: TBT p99 3x"
    silent = slower(ALONE, tbt=stats(nan, nan))
    assert "TBT mean no answer" in verdict(silent, wanted)
    assert verdict(ALONE, []) == ""
    starved = replace(ALONE, online=replace(ALONE.online, failed=2))
    assert verdict(starved, wanted) == "over the SLO: 2 of 9 requests not answered"
    assert verdict(starved, []) == unanswered(starved) == "2 of 9 requests not answered"


def test_an_slo_is_not_made_of_traffic_that_nobody_answered() -> None:
    """The demo showed a table of dashes and ended well."""
    nothing = replace(ALONE.online, failed=9, ttft=stats(nan, nan), tbt=stats(nan, nan))
    refused = replace(ALONE, online=nothing, errors=("online-0: status 401",))
    with pytest.raises(CliError, match=r"9 of 9 requests not answered \(online-0: status 401\)"):
        slo_of(refused)


def test_a_key_for_servers_in_the_environment_is_not_for_the_demos(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sesame")
    assert "sesame" not in plan.stock_server(Path("model")).environment.values()


def test_the_demos_servers_are_reached_past_a_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After minutes of other arms, the first call to its control plane went to the proxy."""
    for name in ("http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "registry.test")
    with serve_in_thread(default_app(Settings(data_dir=tmp_path))) as url:
        admin = SecretStr((tmp_path / "admin.key").read_text().strip())
        reach_loopback_directly()
        api = Api(ClientSettings(url=url, api_key=admin))
        try:
            assert api.list_tenants() == []
        finally:
            api.close()
    servers = plan.stock_server(Path("model")).environment
    assert servers["NO_PROXY"] == servers["no_proxy"] == "registry.test,127.0.0.1"


def test_the_batch_asks_about_forty_shared_documents() -> None:
    lines = [json.loads(row) for row in plan.batch_jsonl(plan.batch_lines(600)).splitlines()]
    assert len({line["custom_id"] for line in lines}) == 600
    assert len({line["body"]["prompt"][:500] for line in lines}) == 40
    assert {line["url"] for line in lines} == {plan.ENDPOINT}
    longest = max(len(line["body"]["prompt"]) + line["body"]["max_tokens"] for line in lines)
    assert longest < 2_048


@pytest.mark.parametrize("measure_s", [5, 30, 600])
def test_online_traffic_lasts_as_long_as_the_arms_need_it(measure_s: float) -> None:
    """With `--seconds 600` it used to end ten seconds before the window did."""
    length = plan.Length(measure_s=measure_s)
    load = plan.online_load(bundled_trace(), duration_s=length.online_s)
    assert load[-1].at_s > length.window.total_s + length.online_longer_s - 5


def test_a_trace_that_ends_before_the_window_is_refused() -> None:
    """Its arms were all compared over idle servers, without a word."""
    window = plan.Length().window
    fitting = plan.online_load(bundled_trace()[:40], duration_s=600)
    plan.check_online(fitting, window)
    with pytest.raises(CliError, match=r"its 9 requests end after 5 s, .* begins after 10 s"):
        plan.check_online(plan.online_load(bundled_trace()[:9], duration_s=600), window)


def test_a_longer_batch_is_given_more_time() -> None:
    length = plan.Length()
    assert [length.batch_within_s(lines) for lines in (1, 600, 3000)] == [240, 240, 1200]


def test_a_window_that_the_batch_did_not_fill_is_told() -> None:
    length = plan.Length(measure_s=60)
    assert beside(60.2, length) == beside(59.9, length) == ""
    assert beside(31.4, length) == "over the 31 s that its batch took of the window"
    assert "give more --lines" in beside(0.0, length)


def test_the_online_load_is_the_trace_fitted_to_the_model() -> None:
    load = plan.online_load(bundled_trace(), duration_s=60)
    assert load == plan.online_load(bundled_trace(), duration_s=60)
    assert len(load) == 60 * plan.ONLINE_RATE_PER_S
    assert load[-1].at_s <= 60
    assert max(len(request.prompt) for request in load) <= plan.ONLINE_MAX_INPUT_TOKENS
    assert max(request.max_tokens for request in load) <= plan.ONLINE_MAX_OUTPUT_TOKENS


def test_every_server_serves_the_same_model_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_SLO", "somebody else's")
    stock = plan.stock_server(tmp_path)
    agent = plan.agent_server(tmp_path, tmp_path, controlplane="http://x", key="k", slos=[])
    shared = " ".join(plan.engine_args(tmp_path))
    assert shared in " ".join(stock.command)
    assert shared in agent.environment["WEIR_ENGINE_ARGS"]
    assert agent.environment["WEIR_SLO"] == "[]"
    assert not any(name.startswith("WEIR_") for name in stock.environment)
    for name, value in plan.ENGINE_ENVIRONMENT.items():
        assert stock.environment[name] == agent.environment[name] == value


def test_the_folder_may_have_a_space_in_its_name(tmp_path: Path) -> None:
    model = tmp_path / "my demo" / "model"
    agent = plan.agent_server(model.parent, model, controlplane="http://x", key="k", slos=[])
    given = shlex.split(agent.environment["WEIR_ENGINE_ARGS"])
    assert given[given.index("--model") + 1] == str(model)
    assert given[2:4] == ["--served-model-name", plan.MODEL]
