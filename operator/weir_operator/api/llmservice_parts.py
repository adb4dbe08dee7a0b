"""The parts of an LLMService's spec that say what runs and how well; see `llmservice_operation`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from weir_operator.api.base import (
    ApiModel,
    Quantity,
    fixed,
    quantities,
    rule,
    with_rules,
)

IDLE = "Without effect in this release."
"""Said of the fields that no setting of the agent or the control plane takes for one service."""

OWN_ENGINE_ARGS = {
    "model": "model.uri",
    "served-model-name": "model.servedName",
    "revision": "model.revision",
    "tensor-parallel-size": "engine.tensorParallelSize",
    "max-model-len": "engine.maxModelLen",
    "block-size": "engine.blockSize",
    "host": "nothing: the agent listens on all addresses",
    "port": "nothing: the agent listens on 8000",
}
"""Options of the engine that have a field, or that are not the user's to set."""

_OWN = "|".join(OWN_ENGINE_ARGS)
MODEL_URI = (
    r"^(hf://[A-Za-z0-9][\\w.-]*/[A-Za-z0-9][\\w.-]*|"
    r"pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[\\w./-]*)?|/[\\w./-]+)$"
)


class Model(ApiModel):
    """Which model is served, and under which name."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            fixed(
                "servedName",
                optional=True,
                why="clients and queued batches know the model by it; make another LLMService",
            ),
            rule(
                "!has(self.revision) || self.uri.startsWith('hf://')",
                "model.revision is only known for hf:// models: remove it, or give an hf:// uri",
            ),
        )
    )

    uri: str = Field(
        min_length=1,
        max_length=1_024,
        description="Where the weights are: hf://ORGANISATION/NAME (downloaded at start), "
        "pvc://CLAIM/FOLDER (a PersistentVolumeClaim of the namespace, mounted read-only) or an "
        "absolute path in the image.",
        json_schema_extra=with_rules(
            rule(
                f"self.matches('{MODEL_URI}') && !self.contains('..')",
                "model.uri must be hf://ORGANISATION/NAME, pvc://CLAIM/FOLDER or an absolute path "
                "in the image",
            )
        ),
    )
    served_name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="The model's name in requests (`model`). Default: the LLMService's own name. "
        "Cannot be changed.",
        json_schema_extra=with_rules(
            rule(
                r"self.matches('^[A-Za-z0-9][\\w./:-]*$')",
                "model.servedName must start with a letter or digit and hold only letters, "
                "digits, and any of . _ - / :",
            )
        ),
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Branch, tag or commit of an hf:// model. Batches are pinned to it.",
        json_schema_extra=with_rules(
            rule(
                r"self.matches('^[A-Za-z0-9][\\w./-]*$')",
                "model.revision must be a branch, tag or commit: letters, digits, and . _ - /",
            )
        ),
    )


class Engine(ApiModel):
    """The inference engine and how it is started."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            fixed(
                "backend",
                why="latency profiles and KV accounting of running batches depend on it; make "
                "another LLMService",
            )
        )
    )

    backend: Literal["vllm", "torch"] = Field(
        default="vllm",
        description="vllm: vLLM under Weir's scheduler, for production. torch: Weir's reference "
        "engine, which has bidirectional KV blocks and attention on the CPU. Without effect in "
        "this release: there is no such engine yet. Cannot be changed.",
    )
    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="Container image of the agent with the engine. Default: the operator's.",
        json_schema_extra=with_rules(
            rule(
                r"!self.matches('\\s')",
                "engine.image must be one image reference, without spaces, such as "
                "registry.example/weir-agent:0.1.0",
            )
        ),
    )
    args: list[
        Annotated[
            str,
            Field(
                max_length=4_096,
                json_schema_extra=with_rules(
                    rule(
                        f"!self.matches('^--({_OWN})(=.*)?$')",
                        "engine.args must not set what has a field: use model.uri, "
                        "model.servedName, model.revision, engine.tensorParallelSize, "
                        "engine.maxModelLen or engine.blockSize; host and port are Weir's",
                    )
                ),
            ),
        ]
    ] = Field(
        default_factory=list,
        max_length=128,
        description=(
            "Further arguments of the engine, as `vllm serve` takes them, one item each. "
            "Kubernetes reads `$(NAME)` as a variable of the container and `$$` as one `$`."
        ),
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    tensor_parallel_size: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Over how many GPUs of its node each replica splits the model.",
    )
    max_model_len: int | None = Field(
        default=None,
        ge=1,
        le=16_777_216,
        description="Longest prompt and output together, in tokens. Default: the model's own.",
    )
    block_size: Literal[1, 8, 16, 32, 64, 128, 256] | None = Field(
        default=None, description="Tokens in a KV block. Default: the engine's own choice."
    )


class Resources(ApiModel):
    """CPU, memory and devices of the engine's container."""

    limits: dict[str, Quantity] | None = Field(
        default=None,
        json_schema_extra=with_rules(quantities("resources.limits"), maxProperties=32),
        description="Most that a replica may use, by resource name (cpu, memory, nvidia.com/gpu).",
    )
    requests: dict[str, Quantity] | None = Field(
        default=None,
        json_schema_extra=with_rules(quantities("resources.requests"), maxProperties=32),
        description="What a replica is scheduled by, by resource name. Default: the limits.",
    )


class Slo(ApiModel):
    """One latency objective."""

    metric: Literal["ttft", "tpot", "tbt"] = Field(
        description="ttft: time to first token. tpot: time per output token of a whole answer. "
        "tbt: time between two tokens."
    )
    statistic: str = Field(
        max_length=4,
        description="What of the metric is held: mean, or a percentile from p50 to p99.",
        json_schema_extra=with_rules(
            rule(
                "self.matches('^(mean|p[5-9][0-9])$')",
                "slo statistic must be mean, or a percentile from p50 to p99",
            )
        ),
    )
    threshold_seconds: float = Field(
        gt=0, le=86_400, description="The latency that must not be exceeded, in seconds."
    )
    reference_seconds: float | None = Field(
        default=None,
        gt=0,
        le=86_400,
        description="The latency of online traffic alone, in seconds, if it was measured: with it "
        "only the delay that batch work causes is counted.",
    )

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule(
                "!has(self.referenceSeconds) || self.referenceSeconds <= self.thresholdSeconds",
                "slo referenceSeconds must not be above thresholdSeconds: online traffic alone "
                "would miss the objective",
            )
        )
    )


class Forecast(ApiModel):
    """How the online KV demand of each pod is forecast."""

    window: str = Field(
        default="1h",
        max_length=8,
        description=f"The past that is looked at, such as 30m, 1h or 24h. {IDLE}",
        json_schema_extra=with_rules(
            rule(
                "self.matches('^[1-9][0-9]{0,4}[smh]$') && duration(self) >= duration('1m') && "
                "duration(self) <= duration('168h')",
                "colocation.forecast.window must be from 1m to 168h, such as 30m or 1h",
            )
        ),
    )
    sigma: float = Field(
        default=2.0,
        ge=0,
        le=10,
        description=f"Standard deviations above the mean demand that are kept free for it. {IDLE}",
    )
    method: Literal["auto", "mean_sigma", "quantile", "seasonal"] = Field(
        default="auto",
        description=f"auto: whichever of the others forecast this pod best of late. {IDLE}",
    )


class Colocation(ApiModel):
    """How batch work shares the replicas."""

    enabled: bool = Field(
        default=True, description="Whether batch work runs here. False: online requests only."
    )
    preset: Literal["weir"] = Field(
        default="weir",
        description="The scheduling preset of the engine. Only weir is offered; the others of "
        "docs/presets.md are for comparison.",
    )
    offline_policy: Literal["prefix", "fcfs", "deadline"] | None = Field(
        default=None,
        description="The order of batch lines in the engine. prefix: lines with a common beginning "
        "together. fcfs: first come, first served. deadline: the earliest first. Default: the "
        f"preset's. {IDLE}",
    )
    utility_ratio: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="The share of picks that go by prefix sharing rather than by age: 1 is all "
        f"for throughput, 0 all for fairness. Default: the preset's. {IDLE}",
    )
    max_offline_kv_fraction: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Largest share of a replica's KV blocks for batch work. Default: the control "
        f"plane's. {IDLE}",
    )
    forecast: Forecast = Field(
        default_factory=Forecast,
        description=f"How the online KV demand of each pod is forecast. {IDLE}",
    )
    cpu_attention: bool = Field(
        default=False,
        description="Whether attention of batch work may run on the CPU; backend torch only. "
        f"{IDLE}",
    )
