"""Manifests that the API server must refuse, each with the field and the remedy it must name."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A manifest, and words that the refusal must have.

    ``field`` is the last part of the field's name; ``before``: what is in the cluster already, for
    a change that is refused.
    """

    name: str
    manifest: Mapping[str, Any]
    field: str
    remedy: str
    before: Mapping[str, Any] | None = None


REMOVE = object()


def good(kind: str) -> dict[str, Any]:
    """A small manifest that is accepted."""
    specs: dict[str, dict[str, Any]] = {
        "LLMService": {"model": {"uri": "hf://meta/llama"}},
        "BatchJob": {"serviceRef": {"name": "chat"}, "input": {"inline": "{}\n"}},
    }
    return {
        "apiVersion": "weir.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": "sample"},
        "spec": copy.deepcopy(specs[kind]),
    }


def changed(manifest: Mapping[str, Any], changes: Mapping[str, object]) -> dict[str, Any]:
    """The manifest with values at dotted paths of its spec set, or removed."""
    result = copy.deepcopy(dict(manifest))
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = result["spec"]
        for name in parents:
            place = place.setdefault(name, {})
        if value is REMOVE:
            del place[last]
        else:
            place[last] = value
    return result


def _bad(kind: str, name: str, changes: Mapping[str, object], field: str, remedy: str) -> Bad:
    return Bad(
        name=f"{kind}: {name}", manifest=changed(good(kind), changes), field=field, remedy=remedy
    )


def service(name: str, changes: Mapping[str, object], field: str, remedy: str) -> Bad:
    return _bad("LLMService", name, changes, field, remedy)


def job(name: str, changes: Mapping[str, object], field: str, remedy: str) -> Bad:
    return _bad("BatchJob", name, changes, field, remedy)


def change(
    kind: str,
    name: str,
    before: Mapping[str, object],
    after: Mapping[str, object],
    *,
    says: tuple[str, str],
) -> Bad:
    """A change of an object that is refused; ``says``: field and remedy."""
    first = changed(good(kind), before)
    return Bad(
        name=f"{kind} changed: {name}",
        before=first,
        manifest=changed(first, after),
        field=says[0],
        remedy=says[1],
    )


def named(kind: str, name: str, remedy: str) -> Bad:
    manifest = good(kind)
    manifest["metadata"]["name"] = name
    return Bad(name=f"{kind} named {name[:20]}", manifest=manifest, field="name", remedy=remedy)


HPA = {"type": "HPA", "maxReplicas": 4, "metrics": [{"type": "Resource"}]}
KEDA = {"type": "KEDA", "maxReplicas": 4, "triggers": [{"type": "cron"}]}
SLO = {"metric": "tbt", "statistic": "p99", "thresholdSeconds": 0.1}
ONE_OF = "exactly one of uri, configMapKeyRef and inline"
ANOTHER = "make another BatchJob"

SERVICES = (
    service("no model", {"model": REMOVE}, "model", "Required value"),
    service("no uri", {"model": {}}, "uri", "Required value"),
    service("a bare name as uri", {"model.uri": "llama"}, "model.uri", "hf://ORGANISATION/NAME"),
    service("uri over http", {"model.uri": "http://x/y"}, "model.uri", "absolute path"),
    service("uri that climbs", {"model.uri": "pvc://w/../x"}, "model.uri", "pvc://CLAIM/FOLDER"),
    service("empty uri", {"model.uri": ""}, "uri", "at least 1 chars"),
    service("served name with spaces", {"model.servedName": "a b"}, "servedName", "only letters"),
    service(
        "revision of a claim",
        {"model.uri": "pvc://w/x", "model.revision": "v1"},
        "model.revision",
        "give an hf:// uri",
    ),
    service("revision with spaces", {"model.revision": "a b"}, "revision", "branch, tag or commit"),
    service("unknown backend", {"engine.backend": "tgi"}, "backend", '"vllm", "torch"'),
    service("image with spaces", {"engine.image": "a b"}, "engine.image", "without spaces"),
    service("own --model", {"engine.args": ["--model=x"]}, "engine.args", "use model.uri"),
    service("own --port", {"engine.args": ["--port", "1"]}, "engine.args", "host and port"),
    service(
        "an argument that is a number", {"engine.args": [64]}, "args", "must be of type string"
    ),
    service("no GPUs", {"engine.tensorParallelSize": 0}, "tensorParallelSize", "equal to 1"),
    service(
        "too many GPUs", {"engine.tensorParallelSize": 65}, "tensorParallelSize", "equal to 64"
    ),
    service(
        "GPUs unlike parallelism",
        {"engine.tensorParallelSize": 4, "resources.limits": {"nvidia.com/gpu": 2}},
        "resources.limits",
        "equal to engine.tensorParallelSize",
    ),
    service(
        "GPUs unlike parallelism, as text",
        {"resources.limits": {"nvidia.com/gpu": "2"}},
        "resources.limits",
        "equal to engine.tensorParallelSize",
    ),
    service("no context", {"engine.maxModelLen": 0}, "maxModelLen", "equal to 1"),
    service("odd block size", {"engine.blockSize": 17}, "blockSize", "16"),
    service("negative replicas", {"replicas": -1}, "replicas", "equal to 0"),
    service("replicas as text", {"replicas": "two"}, "replicas", "type integer"),
    service(
        "quantity with a wrong unit",
        {"resources.limits": {"memory": "8GiB"}},
        "resources.limits",
        "such as 500m",
    ),
    service("less than nothing", {"resources.limits": {"cpu": "-1"}}, "limits", "0 or more"),
    service("less than no memory", {"resources.requests": {"memory": -1}}, "requests", "0 or more"),
    service(
        "unknown metric", {"slo": [{**SLO, "metric": "e2e"}]}, "metric", '"ttft", "tpot", "tbt"'
    ),
    service("p42", {"slo": [{**SLO, "statistic": "p42"}]}, "statistic", "p50 to p99"),
    service("p100", {"slo": [{**SLO, "statistic": "p100"}]}, "statistic", "p50 to p99"),
    service("threshold of 0", {"slo": [{**SLO, "thresholdSeconds": 0}]}, "thresholdSeconds", "0"),
    service(
        "threshold as text",
        {"slo": [{**SLO, "thresholdSeconds": "100ms"}]},
        "thresholdSeconds",
        "type number",
    ),
    service(
        "no threshold",
        {"slo": [{"metric": "tbt", "statistic": "p99"}]},
        "thresholdSeconds",
        "Required value",
    ),
    service("the same objective twice", {"slo": [SLO, SLO]}, "slo", "Duplicate value"),
    service(
        "reference above the threshold",
        {"slo": [{**SLO, "referenceSeconds": 1}]},
        "referenceSeconds",
        "not be above thresholdSeconds",
    ),
    service("unknown preset", {"colocation.preset": "orca"}, "preset", '"weir"'),
    service("ratio above 1", {"colocation.utilityRatio": 1.5}, "utilityRatio", "equal to 1"),
    service(
        "negative KV share",
        {"colocation.maxOfflineKVFraction": -0.1},
        "maxOfflineKVFraction",
        "equal to 0",
    ),
    service(
        "KV share without co-location",
        {"colocation.enabled": False, "colocation.maxOfflineKVFraction": 0.5},
        "maxOfflineKVFraction",
        "enable co-location",
    ),
    service(
        "attention on the CPU with vLLM",
        {"colocation.cpuAttention": True},
        "cpuAttention",
        "engine.backend torch",
    ),
    service(
        "window without a unit", {"colocation.forecast": {"window": "60"}}, "window", "30m or 1h"
    ),
    service("window of a month", {"colocation.forecast": {"window": "720h"}}, "window", "168h"),
    service("window in days", {"colocation.forecast": {"window": "1d"}}, "window", "30m or 1h"),
    service(
        "unknown forecast", {"colocation.forecast": {"method": "lstm"}}, "method", '"seasonal"'
    ),
    service(
        "neither surge nor missing",
        {"rollout": {"maxSurge": 0, "maxUnavailable": 0}},
        "maxSurge",
        "maxSurge 0 and maxUnavailable 1",
    ),
    service(
        "neither, in percent",
        {"rollout": {"maxSurge": "0%", "maxUnavailable": 0}},
        "maxSurge",
        "maxSurge 0 and maxUnavailable 1",
    ),
    service("surge of 150%", {"rollout": {"maxSurge": "150%"}}, "rollout.maxSurge", "100%"),
    service("negative surge", {"rollout": {"maxSurge": -1}}, "rollout.maxSurge", "0 or more"),
    service(
        "budget in words",
        {"podDisruptionBudget": {"maxUnavailable": "one"}},
        "podDisruptionBudget.maxUnavailable",
        "0 or more",
    ),
    service("negative drain", {"rollout": {"drainSeconds": -1}}, "drainSeconds", "equal to 0"),
    service("no time to load", {"rollout": {"startupSeconds": 1}}, "startupSeconds", "equal to 10"),
    service("autoscaling without a type", {"autoscaling": {"maxReplicas": 2}}, "type", "Required"),
    service(
        "autoscaling without a maximum",
        {"autoscaling": {"type": "HPA", "metrics": [{}]}},
        "maxReplicas",
        "Required value",
    ),
    service(
        "minimum above maximum",
        {"autoscaling": {**HPA, "minReplicas": 5}},
        "minReplicas",
        "not be above maxReplicas",
    ),
    service("HPA to zero", {"autoscaling": {**HPA, "minReplicas": 0}}, "minReplicas", "at least 1"),
    service(
        "HPA without metrics",
        {"autoscaling": {"type": "HPA", "maxReplicas": 2}},
        "metrics",
        "give what to scale by",
    ),
    service(
        "KEDA without triggers",
        {"autoscaling": {"type": "KEDA", "maxReplicas": 2}},
        "triggers",
        "give what to scale by",
    ),
    service(
        "triggers for an HPA",
        {"autoscaling": {**HPA, "triggers": [{"type": "cron"}]}},
        "triggers",
        "give metrics instead",
    ),
    service(
        "metrics for KEDA",
        {"autoscaling": {**KEDA, "metrics": [{"type": "Resource"}]}},
        "metrics",
        "give triggers instead",
    ),
    service("unknown autoscaler", {"autoscaling": {**HPA, "type": "VPA"}}, "type", '"HPA", "KEDA"'),
    service(
        "interval without a unit", {"monitoring": {"interval": "15"}}, "interval", "such as 15s"
    ),
    service(
        "a misspelt field",
        {"engine": {"tensorParalelSize": 2}},
        "tensorParalelSize",
        "unknown field",
    ),
    service("a field of another version", {"gpus": 2}, "gpus", "unknown field"),
    named("LLMService", "3rd", "start with a letter"),
    named("LLMService", "a.b", "start with a letter"),
    named("LLMService", "x" * 64, "at most 63"),
)

JOBS = (
    job(
        "ConfigMap of another namespace",
        {"input": {"configMapKeyRef": {"name": "../../other/configmaps/x", "key": "k"}}},
        "configMapKeyRef.name",
        "of this namespace",
    ),
    job(
        "ConfigMap by what a path goes up by",
        {"input": {"configMapKeyRef": {"name": "..", "key": "k"}}},
        "configMapKeyRef.name",
        "of this namespace",
    ),
    job(
        "key that no ConfigMap has",
        {"input": {"configMapKeyRef": {"name": "x", "key": "a/b"}}},
        "configMapKeyRef.key",
        "letters, digits",
    ),
    job("no service", {"serviceRef": REMOVE}, "serviceRef", "Required value"),
    job("service without a name", {"serviceRef": {}}, "name", "Required value"),
    job(
        "service of another namespace",
        {"serviceRef.name": "other/chat"},
        "serviceRef.name",
        "LLMService of this namespace",
    ),
    job("no input", {"input": REMOVE}, "input", "Required value"),
    job("empty input", {"input": {}}, "input", ONE_OF),
    job("two inputs", {"input.uri": "s3://b/k"}, "input", ONE_OF),
    job("inline over 64 KiB", {"input.inline": "x" * 65_537}, "inline", "65536"),
    job(
        "inline over 64 KiB in bytes",
        {"input.inline": "é" * 40_000},
        "input.inline",
        "configMapKeyRef or uri",
    ),
    job(
        "ConfigMap without a key",
        {"input": {"configMapKeyRef": {"name": "x"}}},
        "key",
        "Required value",
    ),
    job("input without a scheme", {"input": {"uri": "/data/in.jsonl"}}, "input.uri", "scheme://"),
    job("input with a password", {"input": {"uri": "s3://me:pw@b/k"}}, "input.uri", "user info"),
    job("input that climbs", {"input": {"uri": "s3://b/a/../k"}}, "input.uri", "'..'"),
    job("chained input", {"input": {"uri": "zip://a::s3://b/k"}}, "input.uri", "'::'"),
    job("output over HTTP", {"output": {"uri": "https://x/y"}}, "output.uri", "object store"),
    job("output without a uri", {"output": {}}, "uri", "Required value"),
    job("unknown endpoint", {"endpoint": "/v1/embeddings"}, "endpoint", '"/v1/chat/completions"'),
    job("window in words", {"completionWindow": "a day"}, "completionWindow", "such as 24h"),
    job("window of nothing", {"completionWindow": "0h"}, "completionWindow", "such as 24h"),
    job("deadline that is no time", {"deadline": "tomorrow"}, "deadline", "such as 2030"),
    job(
        "deadline by a clock that there is not",
        {"deadline": "2030-01-01T00:00:00+99:99"},
        "deadline",
        "such as 2030",
    ),
    job("deadline on no day", {"deadline": "2030-04-31T00:00:00Z"}, "deadline", "such as 2030"),
    job("deadline without a zone", {"deadline": "2030-01-01T00:00:00"}, "deadline", "such as 2030"),
    job("deadline of long ago", {"deadline": "1960-01-01T00:00:00Z"}, "deadline", "such as 2030"),
    job("deadline in no year", {"deadline": "0000-01-01T00:00:00Z"}, "deadline", "such as 2030"),
    job("priority above the bound", {"priority": 1001}, "priority", "equal to 1000"),
    job("suspend as text", {"suspend": "yes"}, "suspend", "type boolean"),
    job(
        "negative time to live",
        {"ttlSecondsAfterFinished": -1},
        "ttlSecondsAfterFinished",
        "equal to 0",
    ),
    job("managed by a name", {"managedBy": "kueue"}, "managedBy", "weir.dev/operator"),
    job(
        "metadata with a long key", {"metadata": {"k" * 65: "v"}}, "metadata", "1 to 64 characters"
    ),
    job("metadata with a long value", {"metadata": {"k": "v" * 513}}, "metadata", "512"),
    job(
        "too much metadata",
        {"metadata": {f"k{number}": "v" for number in range(17)}},
        "metadata",
        "at most 16",
    ),
    job("a misspelt field", {"priorty": 1}, "priorty", "unknown field"),
)

CHANGES = (
    change(
        "LLMService",
        "servedName",
        {"model.servedName": "a"},
        {"model.servedName": "b"},
        says=("servedName", "make another LLMService"),
    ),
    change(
        "LLMService",
        "servedName removed",
        {"model.servedName": "a"},
        {"model.servedName": REMOVE},
        says=("servedName", "make another LLMService"),
    ),
    change(
        "LLMService",
        "servedName added",
        {},
        {"model.servedName": "a"},
        says=("servedName", "make another LLMService"),
    ),
    change(
        "LLMService",
        "backend",
        {},
        {"engine.backend": "torch"},
        says=("backend", "make another LLMService"),
    ),
    change(
        "LLMService",
        "backend by removal",
        {"engine.backend": "torch"},
        {"engine": REMOVE},
        says=("backend", "make another LLMService"),
    ),
    change(
        "BatchJob", "serviceRef", {}, {"serviceRef.name": "other"}, says=("serviceRef", ANOTHER)
    ),
    change("BatchJob", "input", {}, {"input.inline": "[]\n"}, says=("input", ANOTHER)),
    change(
        "BatchJob", "kind of input", {}, {"input": {"uri": "s3://b/k"}}, says=("input", ANOTHER)
    ),
    change("BatchJob", "endpoint", {}, {"endpoint": "/v1/completions"}, says=("endpoint", ANOTHER)),
    change(
        "BatchJob", "output added", {}, {"output": {"uri": "s3://b/o/"}}, says=("output", ANOTHER)
    ),
    change(
        "BatchJob",
        "output removed",
        {"output": {"uri": "s3://b/o/"}},
        {"output": REMOVE},
        says=("output", ANOTHER),
    ),
    change(
        "BatchJob",
        "completionWindow",
        {},
        {"completionWindow": "48h"},
        says=("completionWindow", ANOTHER),
    ),
    change(
        "BatchJob",
        "metadata",
        {"metadata": {"a": "1"}},
        {"metadata": {"a": "2"}},
        says=("metadata", ANOTHER),
    ),
    change(
        "BatchJob",
        "managedBy added",
        {},
        {"managedBy": "weir.dev/operator"},
        says=("managedBy", ANOTHER),
    ),
    change(
        "BatchJob",
        "managedBy removed",
        {"managedBy": "a.b/c"},
        {"managedBy": REMOVE},
        says=("managedBy", ANOTHER),
    ),
)

BAD = (*SERVICES, *JOBS, *CHANGES)

ALLOWED_CHANGES: tuple[tuple[str, dict[str, object], dict[str, object]], ...] = (
    ("LLMService", {}, {"replicas": 0, "model": {"uri": "/opt/other"}, "slo": [SLO]}),
    ("LLMService", {}, {"autoscaling": HPA, "resources": {"limits": {"nvidia.com/gpu": "1"}}}),
    ("LLMService", {}, {"podTemplate": {"spec": {"hostNetwork": False, "anything": [1, "a"]}}}),
    ("LLMService", {}, {"rollout": {"maxSurge": "25%", "maxUnavailable": "0%"}}),
    ("BatchJob", {}, {"suspend": True, "priority": -7, "ttlSecondsAfterFinished": 0}),
    ("BatchJob", {}, {"deadline": "2030-01-01T00:00:00Z"}),
    ("BatchJob", {}, {"deadline": "9999-12-31T23:59:59.9999999Z"}),
)
"""(kind, before, changes): what stays possible."""
