"""What crosses the boundary of the engine process: tags on requests, policy, settings.

Plain dicts outside, checked values inside. No vLLM is imported here, so that the agent may use it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from weir_engine.config import Metric, Policy, Slo
from weir_engine.errors import ConfigError
from weir_engine.ids import RequestClass

WEIR_KEY = "weir"
"""Key of Weir's part in ``sampling_params.extra_args`` and in ``additional_config``."""

SET_POLICY = "weir_set_policy"
"""``call_utility_async(SET_POLICY, message)``, see ``PolicyMessage``. Answers
``{"accepted": True}``, or ``{"accepted": False, "error": str}`` naming the field."""

TELEMETRY = "weir_telemetry"
"""``call_utility_async(TELEMETRY)``: a dict of fixed size, sums since the start and levels now."""

LATENCY_PROFILE = "weir_latency_profile"
"""``call_utility_async(LATENCY_PROFILE)``: the latency model, as
``BridgeSettings.profile`` takes it."""

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Blocks = Annotated[int, Field(ge=0)]
Objective = Annotated[str, Field(pattern="^(ttft|tpot|tbt)_(mean|p[5-9][0-9])$")]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RequestTag(_Message):
    """What the agent says of a request, in ``sampling_params.extra_args["weir"]``.

    A request without it is online. ``deadline_s`` is on the machine's monotonic clock
    (``time.monotonic()``, the same in every process of the pod). ``group`` hints at a shared
    prefix; ``solo`` keeps every other offline request out of the engine.
    """

    klass: Literal["online", "offline"] = Field(default="online", alias="class")
    tenant: str = ""
    group: str | None = None
    deadline_s: float | None = None
    expected_output_tokens: Annotated[int, Field(ge=1)] | None = None
    solo: bool = False

    @property
    def request_class(self) -> RequestClass:
        """The class as the scheduler names it."""
        return RequestClass.OFFLINE if self.klass == "offline" else RequestClass.ONLINE

    def as_extra_args(self) -> dict[str, Any]:
        """The value for ``sampling_params.extra_args``; unset fields are left out."""
        return {WEIR_KEY: self.model_dump(by_alias=True, exclude_defaults=True)}


_M = TypeVar("_M", bound=BaseModel)

ONLINE_TAG = RequestTag()
"""What a request without a tag gets."""


class PolicyMessage(_Message):
    """The argument of ``weir_set_policy``.

    ``lease_s`` counts from the moment the engine process reads it; None never ends.
    ``client_delay_s`` maps objectives, such as "ttft_p99", to seconds between engine and client.
    """

    offline_kv_blocks: Blocks
    offline_seq_slots: Blocks
    step_budget_s: Seconds | None = None
    lease_s: Seconds | None = None
    client_delay_s: dict[Objective, Seconds] = Field(default_factory=dict)

    def policy(self, now_s: float) -> Policy:
        """The policy that begins at ``now_s`` on the scheduler's clock."""
        return Policy(
            offline_kv_blocks=self.offline_kv_blocks,
            offline_seq_slots=self.offline_seq_slots,
            step_budget_s=self.step_budget_s,
            expires_s=None if self.lease_s is None else now_s + self.lease_s,
            client_delay_s=dict(self.client_delay_s),
        )


class SloMessage(_Message):
    """One latency objective: ``metric`` ttft, tpot or tbt, ``statistic`` mean or p50 to p99.

    ``reference_s``: what online traffic alone was measured to have, where that is known.
    """

    metric: Metric
    statistic: str
    threshold_s: float
    reference_s: float | None = None

    def slo(self) -> Slo:
        """The objective as the scheduler takes it."""
        return Slo(
            metric=self.metric,
            statistic=self.statistic,
            threshold_s=self.threshold_s,
            reference_s=self.reference_s,
        )


class KeptFile(_Message):
    """Where an earlier start may have left the latency profile of the engine ``identity``."""

    folder: Path
    identity: str


class BridgeSettings(_Message):
    """``additional_config["weir"]``, read once when the engine starts.

    ``strict``: a divergence between plan and engine raises (tests) instead of being counted and
    corrected. ``policy`` holds from the start until another one is set; without it no offline work
    runs. ``profile`` is a saved latency profile that warms the model up; without it what is in
    ``kept`` does: by its name alone, since vLLM compiles anew whenever a word of these settings
    differs. ``static_budget_s`` is the step budget of presets that have one. Where ``slos`` is
    empty, ``over_alone`` is the share by which online means may be above those without batch work;
    None: nothing bounds them. ``step_file`` is where steps are recorded (``StepFile``).

    ``offline_order`` ranks waiting offline requests: "prefix" tries those that share a prefix one
    after another, except that ``utility_ratio`` (0 to 1) of the places go that way and the rest to
    those that have waited for more than ``stale_s``; "arrival" takes them as they came.
    ``classed_eviction`` False keeps vLLM's own eviction order; ``guard_online`` keeps what online
    used last, as many blocks as offline work may not pin. ``partial_hits`` lets prefix hits end
    inside a block (``SharedTails``). ``grammar_timeout_s`` bounds the compilation of an offline
    request's grammar. ``seed`` is for the draws.
    """

    preset: str = "weir"
    slos: list[SloMessage] = Field(default_factory=list)
    strict: bool = False
    policy: PolicyMessage | None = None
    profile: dict[str, Any] | None = None
    kept: KeptFile | None = None
    static_budget_s: Seconds | None = None
    over_alone: Annotated[float, Field(gt=0)] | None = 0.1
    step_file: Path | None = None
    offline_order: Literal["prefix", "arrival"] = "prefix"
    utility_ratio: Annotated[float, Field(ge=0, le=1)] = 0.9
    stale_s: Seconds = 60.0
    classed_eviction: bool = True
    guard_online: bool = True
    partial_hits: bool = True
    grammar_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    seed: int = 0


def read_tag(extra_args: Mapping[str, Any] | None) -> RequestTag:
    """The tag of a request.

    Raises:
        ConfigError: the tag is not valid; the message names the field.
    """
    value = extra_args.get(WEIR_KEY) if extra_args else None
    if value is None:
        return ONLINE_TAG
    return _read(RequestTag, value, f"extra_args.{WEIR_KEY}")


def read_policy(value: object) -> PolicyMessage:
    """The policy that the agent sent.

    Raises:
        ConfigError: it is not valid; the message names the field.
    """
    return _read(PolicyMessage, value, "policy")


def read_settings(additional_config: object) -> BridgeSettings:
    """The bridge's settings out of ``additional_config``.

    Raises:
        ConfigError: they are not valid; the message names the field.
    """
    value = additional_config.get(WEIR_KEY, {}) if isinstance(additional_config, Mapping) else {}
    settings = _read(BridgeSettings, value, f"additional_config.{WEIR_KEY}")
    for slo in settings.slos:
        slo.slo()
    return settings


def _read(model: type[_M], value: object, where: str) -> _M:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join((where, *(str(part) for part in first["loc"])))
        raise ConfigError(f"{field}: {first['msg']}") from None
