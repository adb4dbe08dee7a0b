"""The environment of the agent's container: an LLMService's spec as the agent's settings."""

from __future__ import annotations

import json
import shlex
from typing import Any

from weir_operator.planning.context import AGENT_PORT, ServiceContext

HAND_BACK_S = 15
"""How long an agent takes at most to hand its chunks back when it ends."""

DATA_DIR = "/var/lib/weir"
TOKEN_DIR = "/var/run/secrets/weir.dev"  # noqa: S105 - a folder
TOKEN_FILE = "token"  # noqa: S105 - a file's name
MODEL_DIR = "/models"
HOME = f"{DATA_DIR}/home"
HF_CACHE_DIR = f"{DATA_DIR}/huggingface"

NOT_CARRIED = (
    "colocation.offlinePolicy",
    "colocation.utilityRatio",
    "colocation.maxOfflineKVFraction",
    "colocation.forecast",
    "colocation.cpuAttention",
)
"""Fields that no setting of this release's agent or control plane takes for a single service."""


def environment(context: ServiceContext) -> list[dict[str, Any]]:
    """The variables of the agent, and of the libraries below it."""
    spec = context.spec
    values = {
        "WEIR_HOST": "0.0.0.0",  # noqa: S104 - the NetworkPolicy says who may reach it
        "WEIR_PORT": str(AGENT_PORT),
        # The kubelet fills in the two variables below: they stand before this one.
        "WEIR_AGENT_ID": "$(POD_NAMESPACE).$(POD_NAME)",
        "WEIR_SERVICE": f"{context.namespace}/{context.name}",
        "WEIR_ENGINE_ARGS": shlex.join(engine_arguments(context)),
        "WEIR_DATA_DIR": DATA_DIR,
        "WEIR_PRESET": spec.colocation.preset,
        "WEIR_DRAIN_S": str(spec.rollout.drain_seconds),
        "WEIR_HAND_BACK_S": str(HAND_BACK_S),
        "HOME": HOME,
        "LOGNAME": "weir",
        "HF_HOME": HF_CACHE_DIR,
    }
    if spec.model.revision:
        values["WEIR_MODEL_REVISION"] = spec.model.revision
    if spec.slo:
        values["WEIR_SLO"] = json.dumps(_slo(context))
    if spec.colocation.enabled:
        values["WEIR_CONTROL_PLANE_URL"] = context.defaults.control_plane_url
        values["WEIR_CONTROL_PLANE_TOKEN_FILE"] = f"{TOKEN_DIR}/{TOKEN_FILE}"
    return [
        {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
        for name, path in (
            ("POD_NAME", "metadata.name"),
            ("POD_NAMESPACE", "metadata.namespace"),
        )
    ] + [{"name": name, "value": value} for name, value in values.items()]


def engine_arguments(context: ServiceContext) -> list[str]:
    """The engine's command line: the fields of the spec, then the user's own arguments."""
    spec = context.spec
    words = ["--model", model_path(context), "--served-model-name", context.served_name]
    if spec.model.revision:
        words += ["--revision", spec.model.revision]
    if spec.engine.tensor_parallel_size > 1:
        words += ["--tensor-parallel-size", str(spec.engine.tensor_parallel_size)]
    if spec.engine.max_model_len is not None:
        words += ["--max-model-len", str(spec.engine.max_model_len)]
    if spec.engine.block_size is not None:
        words += ["--block-size", str(spec.engine.block_size)]
    return words + list(spec.engine.args)


def model_path(context: ServiceContext) -> str:
    """What the engine is told to load."""
    uri = context.spec.model.uri
    if uri.startswith("hf://"):
        return uri.removeprefix("hf://")
    claim = model_claim(context)
    if claim is None:
        return uri
    folder = uri.removeprefix(f"pvc://{claim}").strip("/")
    return f"{MODEL_DIR}/{folder}" if folder else MODEL_DIR


def model_claim(context: ServiceContext) -> str | None:
    """The PersistentVolumeClaim that the model is on; None when it is on none."""
    uri = context.spec.model.uri
    if not uri.startswith("pvc://"):
        return None
    return uri.removeprefix("pvc://").partition("/")[0]


def not_carried(context: ServiceContext) -> tuple[str, ...]:
    """The fields that this spec sets, and that have no effect in this release."""
    engine, given = context.spec.engine, context.spec.colocation
    unset = type(given)()
    asked = {
        "colocation.offlinePolicy": given.offline_policy is not None,
        "colocation.utilityRatio": given.utility_ratio is not None,
        "colocation.maxOfflineKVFraction": given.max_offline_kv_fraction is not None,
        "colocation.forecast": given.forecast != unset.forecast,
        "colocation.cpuAttention": given.cpu_attention,
    }
    # With the operator's image it is vLLM all the same; an image of the user's may be anything.
    torch = ("engine.backend",) if engine.backend == "torch" and engine.image is None else ()
    return torch + tuple(name for name in NOT_CARRIED if asked[name])


def _slo(context: ServiceContext) -> list[dict[str, Any]]:
    return [
        {"metric": item.metric, "statistic": item.statistic, "threshold_s": item.threshold_seconds}
        | ({} if item.reference_seconds is None else {"reference_s": item.reference_seconds})
        for item in context.spec.slo
    ]
