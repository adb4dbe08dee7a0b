"""What users apply: `examples/` as they stand, but for the model and the GPUs that are not here."""

from __future__ import annotations

import json
from typing import Any

import yaml

from e2e.cluster.binaries import ROOT
from e2e.support import volumes
from weir_cli.loadlab.processor import native_dtype

EXAMPLES = ROOT / "examples"
SERVICE = "chat"  # of examples/llmservice.yaml
MODEL = "llama-3.1-8b"
REPLICAS = 2
ENGINE_ENVIRONMENT = {
    "PYTHONPATH": volumes.ENGINE_FOLDER,
    # vLLM's models are looked through by the first process that imports them, and what it found is
    # kept for the others. The packages are compiled: `make setup` did it.
    "VLLM_CACHE_ROOT": volumes.CACHE_FOLDER,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",  # more threads than free cores cost more than they give
    "HF_HUB_OFFLINE": "1",
}
ENGINE_ARGUMENTS = (
    f"--enforce-eager --dtype {native_dtype()} --num-gpu-blocks-override 256 --max-num-seqs 16 "
    "--max-num-batched-tokens 512"
)


def example(name: str) -> list[dict[str, Any]]:
    """The objects of a file of `examples/`."""
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def llm_service() -> dict[str, Any]:
    """The LLMService of the examples with a tiny model on CPUs.

    Its pods take vLLM from a volume: an image with it would be 6 GB. Its objectives are those of a
    machine that does other work too.
    """
    mounts = [
        {"name": "engine", "mountPath": volumes.ENGINE_FOLDER, "readOnly": True},
        {"name": "cache", "mountPath": volumes.CACHE_FOLDER},
    ]
    environment = [{"name": key, "value": value} for key, value in ENGINE_ENVIRONMENT.items()]
    agent = {"name": "agent", "env": environment, "volumeMounts": mounts}
    claims = [
        {"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("engine", "cache")
    ]
    (service,) = example("llmservice.yaml")
    service["spec"] |= {
        "model": {"uri": "pvc://models/tiny", "servedName": MODEL},
        "replicas": REPLICAS,
        "engine": {"maxModelLen": 1024, "blockSize": 32, "args": ENGINE_ARGUMENTS.split()},
        "resources": {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"memory": "6Gi"}},
        "slo": [
            {"metric": "ttft", "statistic": "p99", "thresholdSeconds": 5},
            {"metric": "tbt", "statistic": "p99", "thresholdSeconds": 2},
        ],
        "rollout": {"drainSeconds": 20},
        "podTemplate": {"spec": {"containers": [agent], "volumes": claims}},
    }
    return service


def idle_service(name: str) -> dict[str, Any]:
    """An LLMService without replicas: every child is there, and no pod starts."""
    service = llm_service()
    service["metadata"]["name"] = name
    service["spec"] |= {"replicas": 0, "model": {"uri": "pvc://models/tiny", "servedName": name}}
    return service


def batch_job(
    name: str, *, lines: int, max_tokens: int = 8, **spec: object
) -> list[dict[str, Any]]:
    """A BatchJob and the ConfigMap with its lines, ``line-0`` and so on."""
    content = "\n".join(
        json.dumps(
            {
                "custom_id": f"line-{number}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {
                    "model": MODEL,
                    "messages": [{"role": "user", "content": f"question {number}"}],
                    "max_tokens": max_tokens,
                },
            }
        )
        for number in range(lines)
    )
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{name}-lines"},
            "data": {"lines.jsonl": content},
        },
        {
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "BatchJob",
            "metadata": {"name": name},
            "spec": {
                "serviceRef": {"name": SERVICE},
                "input": {"configMapKeyRef": {"name": f"{name}-lines", "key": "lines.jsonl"}},
                **spec,
            },
        },
    ]
