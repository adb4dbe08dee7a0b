"""What crosses the process boundary is checked, and the error names the field."""

from __future__ import annotations

import pytest

from weir_agent.vllm_bridge.messages import (
    ONLINE_TAG,
    RequestTag,
    read_policy,
    read_settings,
    read_tag,
)
from weir_engine.config import Policy
from weir_engine.errors import ConfigError
from weir_engine.ids import RequestClass


def test_a_request_without_a_tag_is_online() -> None:
    assert read_tag(None) is ONLINE_TAG
    assert read_tag({"other": 1}) is ONLINE_TAG
    assert ONLINE_TAG.request_class is RequestClass.ONLINE


def test_a_tag_survives_the_way_into_the_engine() -> None:
    tag = RequestTag.model_validate(
        {"class": "offline", "tenant": "a", "group": "g", "deadline_s": 12.5, "solo": True}
    )
    assert read_tag(tag.as_extra_args()) == tag
    assert read_tag(tag.as_extra_args()).request_class is RequestClass.OFFLINE
    assert read_tag(ONLINE_TAG.as_extra_args()) == ONLINE_TAG


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"class": "both"}, "extra_args.weir.class"),
        ({"class": "offline", "colour": 1}, "extra_args.weir.colour"),
        ({"expected_output_tokens": 0}, "extra_args.weir.expected_output_tokens"),
        ("offline", "extra_args.weir"),
    ],
)
def test_a_broken_tag_names_its_field(value: object, field: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{field}: "):
        read_tag({"weir": value})


def test_a_policy_begins_when_it_is_read() -> None:
    message = read_policy(
        {
            "offline_kv_blocks": 10,
            "offline_seq_slots": 2,
            "step_budget_s": 0.05,
            "lease_s": 90.0,
            "client_delay_s": {"ttft_p99": 0.01},
        }
    )
    assert message.policy(100.0) == Policy(
        offline_kv_blocks=10,
        offline_seq_slots=2,
        step_budget_s=0.05,
        expires_s=190.0,
        client_delay_s={"ttft_p99": 0.01},
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"offline_kv_blocks": -1}, "policy.offline_kv_blocks"),
        ({"offline_seq_slots": 1.5}, "policy.offline_seq_slots"),
        ({"step_budget_s": float("inf")}, "policy.step_budget_s"),
        ({"lease_s": float("nan")}, "policy.lease_s"),
        ({"client_delay_s": {"ttft": 1}}, "policy.client_delay_s.ttft"),
        ({"budget": 1}, "policy.budget"),
    ],
)
def test_a_broken_policy_names_its_field(change: dict[str, object], field: str) -> None:
    policy = {"offline_kv_blocks": 1, "offline_seq_slots": 1, **change}
    with pytest.raises(ConfigError, match=rf"^{field}"):
        read_policy(policy)


def test_settings_are_read_once_and_checked() -> None:
    settings = read_settings(
        {"weir": {"slos": [{"metric": "tbt", "statistic": "p99", "threshold_s": 0.05}]}}
    )
    assert settings.slos[0].slo().quantile == 0.99
    assert not settings.strict
    assert read_settings({}).policy is None
    assert read_settings({}).over_alone == 0.1  # without objectives, design §9


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"slos": [{"metric": "x", "statistic": "mean", "threshold_s": 1}]}, "slos.0.metric"),
        ({"slos": [{"metric": "tbt", "statistic": "p12", "threshold_s": 1}]}, "slo.statistic"),
        ({"slos": [{"metric": "tbt", "statistic": "p99", "threshold_s": -1}]}, "slo.threshold_s"),
        ({"policy": {"offline_kv_blocks": 1}}, "policy.offline_seq_slots"),
        ({"presets": "weir"}, "presets"),
    ],
)
def test_broken_settings_name_their_field(value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings({"weir": value})
