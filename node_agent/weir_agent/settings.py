"""Settings of the node agent: parsed once, at start, from the environment.

The only place that reads the environment. Each field has its unit in its name and a description;
None always means the default that the description gives.
"""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path
from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    SecretStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from weir_agent.chunks.spool import ORDINARY_LINES

DAY_S = 86_400
MAX_COUNT = 2**53  # what JSON holds exactly
KIB_BYTES = 1 << 10
MIB_BYTES = 1 << 20


_WEB_ADDRESS = TypeAdapter(HttpUrl)


class SettingsError(Exception):
    """A setting is missing or wrong; the message names it and says what would be right."""


class SloSetting(BaseModel):
    """One latency objective of the service's online traffic."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: str = Field(pattern="^(ttft|tpot|tbt)$")
    statistic: str = Field(pattern="^(mean|p[5-9][0-9])$")
    threshold_s: float = Field(gt=0, le=DAY_S, allow_inf_nan=False)
    reference_s: float | None = Field(default=None, gt=0, le=DAY_S, allow_inf_nan=False)

    @property
    def name(self) -> str:
        """What it bounds, as the engine's ``Slo.name`` has it."""
        return f"{self.metric}_{self.statistic}"


class AgentSettings(BaseSettings):
    """Everything that can be set on a node agent, as ``WEIR_<NAME>``."""

    model_config = SettingsConfigDict(env_prefix="WEIR_", frozen=True, extra="ignore")

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8000, ge=0, le=65535, description="TCP port; 0 takes a free one.")
    agent_id: str = Field(
        default_factory=socket.gethostname,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$",
        description="Name under which the control plane knows this agent; default: the host name. "
        "It must stay the same over restarts; in Kubernetes it is NAMESPACE.POD.",
    )
    service: str = Field(
        default="default",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,253}$",
        description="The LLMService that this agent is a replica of, in Kubernetes NAMESPACE/NAME.",
    )
    engine_args: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Arguments of `vllm serve`, as on a command line, for example "
        "`--model /models/llama --max-num-seqs 64`.",
    )
    model_revision: str = Field(
        default="",
        max_length=200,
        description="Revision of the model that batches are pinned to; default: empty, any.",
    )
    control_plane_url: str | None = Field(
        default=None,
        pattern="^https?://",
        description="Base URL of the control plane; default: none, the agent serves online only.",
    )
    control_plane_key: SecretStr | None = Field(
        default=None, description="API key of scope `agent` for the control plane."
    )
    control_plane_token_file: Path | None = Field(
        default=None,
        description="File with a ServiceAccount token of audience `weir`, used instead of a key "
        "and read again as it is rotated; default: none.",
    )
    data_dir: Path = Field(
        default=Path("weir-agent-data"),
        description="Folder of results that are not accepted yet, and of the crash journal. It "
        "should outlive the process.",
    )
    log_level: str = Field(
        default="info",
        pattern="^(debug|info|warning|error)$",
        description="Lowest level that is logged.",
    )

    slo: Annotated[tuple[SloSetting, ...], NoDecode] = Field(
        default=(),
        max_length=16,  # the control plane takes what was measured of so many
        description="Latency objectives of online traffic, as JSON: "
        '[{"metric": "tbt", "statistic": "p99", "threshold_s": 0.1}]; metric ttft, tpot or tbt, '
        "statistic mean or p50 to p99. Default: none; means of TBT and TTFT may then be a tenth "
        "above what they would be without batch work, as the engine estimates it.",
    )
    preset: str = Field(default="weir", description="Scheduling preset of the engine.")
    static_budget_s: float | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="Step budget of preset `hygen`, in seconds, found by profiling; other presets "
        "find their own.",
    )
    strict_plan: bool = Field(
        default=False,
        description="End the engine when it did not do what was planned (for tests), instead of "
        "counting it.",
    )
    latency_profile: Path | None = Field(
        default=None,
        description="File with a saved latency profile that warms the model up; default: what an "
        "earlier start of the same engine left in data_dir.",
    )
    partial_hits: bool = Field(
        default=True,
        description="Prefix hits go on inside a block, which is copied: what prompts share of the "
        "block in which they part is not computed again.",
    )
    step_file: Path | None = Field(
        default=None,
        description="File to which the engine's steps are added, sizes and seconds only, up to "
        "64 MiB, for `weir profile`; default: none.",
    )

    lookahead_lines_per_s: float = Field(
        default=200.0,
        gt=0,
        le=1e6,
        description="Most offline lines a second that enter the engine.",
    )
    max_held_lines: int = Field(
        default=1_024,
        ge=1,
        le=MAX_COUNT,
        description="Most unfinished lines that the agent leases at once.",
    )
    max_held_tokens: int = Field(
        default=1_000_000,
        ge=1,
        le=MAX_COUNT,
        description="Most unfinished tokens (prompt and output) that the agent leases at once.",
    )
    result_max_bytes: int = Field(
        default=256 * KIB_BYTES,
        ge=4 * KIB_BYTES,
        le=8 * MIB_BYTES,
        description="Largest result of one line; a larger one becomes that line's error.",
    )
    spool_max_bytes: int | None = Field(
        default=None,
        ge=MIB_BYTES,
        le=MAX_COUNT,
        description="Most bytes of stored results, at least 32 times result_max_bytes; default: "
        "half of the volume of data_dir.",
    )

    max_choices: int = Field(
        default=8, ge=1, le=MAX_COUNT, description="Largest n times prompts of an offline line."
    )
    max_logprobs: int = Field(
        default=20,
        ge=0,
        le=MAX_COUNT,
        description="Most log probabilities a token of an offline line; where those of a choice "
        "alone are more than result_max_bytes, the choice ends.",
    )
    max_output_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_COUNT,
        description="Largest max_tokens of an offline line; default: what the model's context "
        "leaves.",
    )
    max_grammar_bytes: int = Field(
        default=64 * KIB_BYTES,
        ge=1,
        le=MAX_COUNT,
        description="Largest schema, grammar, pattern, tool or word list of an offline line.",
    )
    grammar_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="How long the compilation of an offline line's grammar or schema may take; "
        "then the line ends with its own error.",
    )
    max_words: int = Field(
        default=64,
        ge=0,
        le=MAX_COUNT,
        description="Most stop strings, and most bad words, of an offline line: engines look for "
        "each of them after every token.",
    )
    max_list_tokens: int = Field(
        default=1_024,
        ge=0,
        le=MAX_COUNT,
        description="Most tokens that logit_bias, allowed_token_ids or stop_token_ids of an "
        "offline line may name.",
    )
    max_parts: int = Field(
        default=4_096,
        ge=1,
        le=MAX_COUNT,
        description="Most messages and content parts together of an offline line: the server that "
        "online requests share checks each of them.",
    )

    sync_timeout_s: float = Field(
        default=5.0, gt=0, le=600, description="How long one sync with the control plane may take."
    )
    transfer_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="How long one fetch of lines or upload may stand still. A fetch or a commit "
        "ends after five times as long in any case.",
    )
    hand_back_s: float = Field(
        default=15.0,
        ge=0,
        le=3600,
        description="How long handing work back may take after SIGTERM.",
    )
    drain_s: float = Field(
        default=60.0,
        ge=0,
        le=DAY_S,
        description="How long running online requests may take after SIGTERM.",
    )
    hang_after_s: float = Field(
        default=60.0,
        ge=3,  # it is asked once a second, and may take two to answer
        le=DAY_S,
        description="Silence of the engine after which it is taken for hung and restarted.",
    )
    restart_backoff_s: float = Field(
        default=0.5, ge=0, le=30, description="Pause before the first restart; doubles up to 30 s."
    )

    @field_validator("slo", mode="before")
    @classmethod
    def _decode(cls, value: object) -> object:
        try:
            return json.loads(value) if isinstance(value, str) else value
        except ValueError as error:
            raise ValueError(f"must be JSON: {error}") from None

    @field_validator("spool_max_bytes")
    @classmethod
    def _holds_a_chunk(cls, value: int | None, info: ValidationInfo) -> int | None:
        least_bytes = ORDINARY_LINES * info.data.get("result_max_bytes", 0)
        if value is not None and value < least_bytes:
            raise ValueError(
                f"must hold {ORDINARY_LINES} results of result_max_bytes, {least_bytes} bytes, or "
                "no batch work is taken: raise it, or lower WEIR_RESULT_MAX_BYTES"
            )
        return value

    @field_validator("control_plane_url", mode="before")
    @classmethod
    def _without_line_end(cls, value: object) -> object:
        return value.strip() if isinstance(value, str) else value

    @field_validator("control_plane_key")
    @classmethod
    def _goes_into_a_header(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None:
            return None
        key = value.get_secret_value().strip()  # Secrets made from a file keep its line end
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise ValueError("must be a key as it was shown: letters, digits and punctuation")
        return SecretStr(key)

    @field_validator("control_plane_url")
    @classmethod
    def _web_address(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise ValueError("must be one line")
        try:
            _ = None if value is None else _WEB_ADDRESS.validate_python(value)
        except ValidationError:
            raise ValueError("must be an http or https URL with a host") from None
        return value

    @field_validator("engine_args", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(shlex.split(value)) if isinstance(value, str) else value


def load_settings(**given: object) -> AgentSettings:
    """The settings: ``given`` first, then the environment, then defaults.

    Raises:
        SettingsError: a value is wrong; each is named with its environment variable.
    """
    try:
        return AgentSettings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        raise SettingsError(describe(error)) from None


def describe(error: ValidationError) -> str:
    """Every wrong field of the settings with its variable, in one sentence."""
    problems = []
    for item in error.errors(include_url=False, include_input=False):
        name = ".".join(str(part) for part in item["loc"]) or "settings"
        problems.append(f"{name}: {item['msg']} (set WEIR_{name.split('.')[0].upper()})")
    return "; ".join(problems)
