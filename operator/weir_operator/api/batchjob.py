"""`BatchJob`: a batch of OpenAI requests, the same object as `/v1/batches/{id}`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from weir_operator.api.base import RFC1123_LABEL, ApiModel, fixed, list_map, rule, with_rules
from weir_operator.api.conditions import Condition

MAX_INLINE_BYTES = 65_536
_NEW = "make another BatchJob"

# No format date-time: it lets more pass than this operator reads, and makes a rule fail to evaluate
# where a wrong value is stored already. A rule that is false forbids to store the value; one that
# fails forbids every later write to the object, its status and finalizers too.
_TIME = {"type": "string", "maxLength": 40}
SINCE_1970 = (
    "^(19[7-9][0-9]|[2-9][0-9]{3})-"
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|[12][0-9]))"
    "T([01][0-9]|2[0-3])(:[0-5][0-9]){2}([.][0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
"""RFC 3339. What it lets pass and no calendar has, such as 29 February 2030, the operator tells."""


class ServiceRef(ApiModel):
    """An LLMService of the same namespace."""

    name: str = Field(
        min_length=1,
        max_length=63,
        description="The LLMService's name.",
        json_schema_extra=with_rules(
            rule(
                f"self.matches('{RFC1123_LABEL}')",
                "serviceRef.name must be the name of an LLMService of this namespace: lower-case "
                "letters, digits and '-'",
            )
        ),
    )


class ConfigMapKeyRef(ApiModel):
    """A key of a ConfigMap of the same namespace."""

    name: str = Field(
        min_length=1,
        max_length=253,
        description="The ConfigMap's name.",
        json_schema_extra=with_rules(
            rule(
                "self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",
                "input.configMapKeyRef.name must be the name of a ConfigMap of this namespace: "
                "lower-case letters, digits, '-' and '.'",
            )
        ),
    )
    key: str = Field(
        min_length=1,
        max_length=253,
        description="The key whose value is the input.",
        json_schema_extra=with_rules(
            rule(
                "self.matches('^[-._a-zA-Z0-9]+$')",
                "input.configMapKeyRef.key must be a key of the ConfigMap: letters, digits, '-', "
                "'_' and '.'",
            )
        ),
    )


class Input(ApiModel):
    """Where the lines are: exactly one of uri, configMapKeyRef and inline."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            rule(
                "(has(self.uri) ? 1 : 0) + (has(self.configMapKeyRef) ? 1 : 0) + "
                "(has(self.inline) ? 1 : 0) == 1",
                "input must have exactly one of uri, configMapKeyRef and inline",
            )
        )
    )

    uri: str | None = Field(
        default=None,
        min_length=1,
        max_length=2_048,
        description="A JSONL file that the control plane reads: s3://BUCKET/KEY, https://… or "
        "another location that the administrator allows for the namespace's tenant.",
        json_schema_extra=with_rules(
            rule(
                r"self.matches('^[a-z][a-z0-9+.-]*://[^\\s@?#]+$') && !self.contains('::') && "
                "!self.contains('/../') && !self.endsWith('/..')",
                "input.uri must be scheme://location, without user info, query, fragment, '..' "
                "and '::'",
            )
        ),
    )
    config_map_key_ref: ConfigMapKeyRef | None = Field(
        default=None, description="A ConfigMap's key that holds the lines (JSONL)."
    )
    inline: str | None = Field(
        default=None,
        min_length=2,
        max_length=MAX_INLINE_BYTES,
        description="The lines themselves (JSONL), at most 64 KiB.",
        json_schema_extra=with_rules(
            rule(
                f"size(bytes(self)) <= {MAX_INLINE_BYTES}",
                "input.inline must be at most 64 KiB: give more by configMapKeyRef or uri",
            )
        ),
    )


class Output(ApiModel):
    """Where the results go."""

    uri: str = Field(
        min_length=1,
        max_length=2_048,
        description="A folder (prefix) that the control plane writes to: s3://BUCKET/FOLDER/ or "
        "another location that the administrator allows for the namespace's tenant. One for each "
        "BatchJob: of output.jsonl and errors.jsonl, one that the batch has not stays as it was.",
        json_schema_extra=with_rules(
            rule(
                r"self.matches('^[a-z][a-z0-9+.-]*://[^\\s@?#]+$') && !self.contains('::') && "
                "!self.contains('/../') && !self.endsWith('/..')",
                "output.uri must be scheme://location, without user info, query, fragment, '..' "
                "and '::'",
            ),
            rule(
                "!self.startsWith('http://') && !self.startsWith('https://')",
                "output.uri cannot be HTTP: give an object store or a folder, such as "
                "s3://BUCKET/FOLDER/",
            ),
        ),
    )


class BatchJobSpec(ApiModel):
    """What is to be run. Only suspend, priority, deadline and ttlSecondsAfterFinished change."""

    model_config = ConfigDict(
        json_schema_extra=with_rules(
            fixed("serviceRef", why=_NEW),
            fixed("input", why=f"the first accepted input is the batch; {_NEW}"),
            fixed("endpoint", why=_NEW),
            fixed("output", optional=True, why=_NEW),
            fixed("completionWindow", why=f"the batch's expiry is set when it is made; {_NEW}"),
            fixed("metadata", optional=True, why=_NEW),
            fixed("managedBy", optional=True, why=f"one controller keeps the object; {_NEW}"),
        )
    )

    service_ref: ServiceRef = Field(
        description="The LLMService of this namespace that computes the lines. Cannot be changed."
    )
    input: Input = Field(description="The lines, in the format of OpenAI's Batch API (JSONL).")
    endpoint: Literal["/v1/chat/completions", "/v1/completions"] = Field(
        default="/v1/chat/completions",
        description="The endpoint that every line is for. Cannot be changed.",
    )
    output: Output | None = Field(
        default=None,
        description="Where the results are copied to. They can be fetched from the control plane "
        "in any case (`weir batch results`).",
    )
    completion_window: str = Field(
        default="24h",
        max_length=8,
        description="How long the batch may take, from its creation: 24h to 7d unless the "
        "administrator allows others. What is not done then is expired. Cannot be changed.",
        json_schema_extra=with_rules(
            rule(
                "self.matches('^[1-9][0-9]{0,5}[smhd]$')",
                "completionWindow must be a number with s, m, h or d, such as 24h",
            )
        ),
    )
    deadline: Annotated[datetime, WithJsonSchema(_TIME)] | None = Field(
        default=None,
        description="When the results are needed, as a time of RFC 3339. Condition AtRisk turns "
        "True when the forecast is later; the batch itself ends with completionWindow.",
        json_schema_extra=with_rules(
            rule(
                f"self.matches('{SINCE_1970}')",
                "deadline must be a time after 1970, such as 2030-01-02T06:00:00Z",
            )
        ),
    )
    priority: int = Field(
        default=0,
        ge=-1_000,
        le=1_000,
        description="Among the batches of the tenant: higher goes first.",
    )
    suspend: bool = Field(
        default=False,
        description="Whether the batch waits: nothing of it is handed out while this is true. "
        "Created with true, nothing is made that could run.",
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        le=31_536_000,
        description="How long the BatchJob is kept after it has ended, in seconds. Its results "
        "stay. Default: for ever.",
    )
    metadata: dict[str, Annotated[str, Field(max_length=512)]] | None = Field(
        default=None,
        description="Up to 16 pairs that the batch carries, as in OpenAI's Batch API. Cannot be "
        "changed.",
        json_schema_extra={
            "maxProperties": 16,
            **with_rules(
                rule(
                    "self.all(key, size(key) >= 1 && size(key) <= 64)",
                    "metadata keys must have 1 to 64 characters",
                )
            ),
        },
    )
    managed_by: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="The controller that acts on this object. Default, and weir.dev/operator: "
        "this operator. With any other value it leaves the object alone. Cannot be changed.",
        json_schema_extra=with_rules(
            rule(
                "self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$')",
                "managedBy must be a domain and a path, such as weir.dev/operator",
            )
        ),
    )


class LineCounts(ApiModel):
    """Lines of the batch."""

    total: int = Field(default=0, ge=0, description="Lines of the input; 0 until it was read.")
    completed: int = Field(default=0, ge=0, description="Lines with a good answer.")
    failed: int = Field(default=0, ge=0, description="Lines that ended with an error of their own.")


class BatchJobStatus(ApiModel):
    """How far the batch is."""

    observed_generation: int = Field(
        default=0, ge=0, description="metadata.generation that this status speaks of."
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        json_schema_extra=list_map("type"),
        description="Accepted, Complete, Failed, Suspended and AtRisk; docs/crds.md gives each "
        "reason.",
    )
    state: str | None = Field(
        default=None,
        description="For people: Pending, Suspended, or the batch's own status. Programs read the "
        "conditions.",
    )
    batch_id: str | None = Field(
        default=None, description="The batch of /v1/batches that this is; set once."
    )
    model: str | None = Field(default=None, description="The model's name in requests.")
    counts: LineCounts = Field(default_factory=LineCounts, description="Lines of the batch.")
    progress_percent: int = Field(
        default=0, ge=0, le=100, description="Share of lines that have ended, in percent."
    )
    eta: datetime | None = Field(default=None, description="When the batch will end, by forecast.")
    expires_at: datetime | None = Field(
        default=None, description="End of the completion window; what is not done then is expired."
    )
    start_time: datetime | None = Field(default=None, description="When the first line could run.")
    completion_time: datetime | None = Field(default=None, description="When the batch ended.")
    output_uri: str | None = Field(default=None, description="Where the answers are.")
    error_uri: str | None = Field(default=None, description="Where the lines' errors are.")


class BatchJob(ApiModel):
    """Runs a batch of OpenAI requests on the surplus of an LLMService."""

    spec: BatchJobSpec = Field(
        description="What is to be run. Only suspend, priority, deadline and "
        "ttlSecondsAfterFinished can be changed."
    )
    status: BatchJobStatus | None = Field(
        default=None, description="How far the batch is; written by the operator."
    )
