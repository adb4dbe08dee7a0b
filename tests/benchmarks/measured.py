"""Measurements of a co-location run, made up."""

from weir_cli.loadlab.measure import Measurement
from weir_cli.loadlab.records import OnlineLatency, latency_stats


def measurement(
    *,
    ttft_s: tuple[float, ...] = (0.1,),
    tbt_s: tuple[float, ...] = (0.01,),
    served: float = 0.0,
    failed: int = 0,
    steps: float = 50.0,
    busy: float = 0.5,
) -> Measurement:
    return Measurement(
        window_s=60.0,
        online=OnlineLatency(
            requests=10,
            failed=failed,
            ttft=latency_stats(ttft_s),
            tbt=latency_stats(tbt_s),
            tpot=latency_stats(tbt_s),
        ),
        online_tokens_per_s=500.0,
        online_hit_rate=0.0,
        offline_served_per_s=served,
        offline_computed_per_s=served / 10,
        steps_per_s=steps,
        busy_share=busy,
        client_cpu_share=0.01,
        preemptions=0,
        offline_errors=0,
        errors=(),
        ended_s=1.8e9,
    )
