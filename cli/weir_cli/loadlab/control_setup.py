"""What the stand-in for the control plane hands out, and its form on a command line."""

from __future__ import annotations

import json
from dataclasses import dataclass

from weir_cli.loadlab.workload import Lengths, OfflineShape


@dataclass(frozen=True, kw_only=True, slots=True)
class StubPolicy:
    """What a sync grants: KV blocks and sequences for offline work.

    ``offline_kv_blocks`` is what is granted at most; with ``forecasts`` it is what the control
    plane's own policy leaves of it, with the syncs so far as the pod's past hour.
    """

    offline_kv_blocks: int
    offline_seq_slots: int
    lease_s: float = 30.0
    forecasts: bool = False


@dataclass(frozen=True, kw_only=True)
class StubSetup:
    """The endless batch and how it is cut; ``chunks_held`` leases at most are out at a time."""

    model: str
    shape: OfflineShape
    seed: int
    policy: StubPolicy
    chunk_lines: int = 60
    chunks_held: int = 4


def setup_to_json(setup: StubSetup) -> str:
    """The command-line form of a setup."""
    shape = setup.shape
    return json.dumps(
        {
            "model": setup.model,
            "seed": setup.seed,
            "lines": shape.lines,
            "documents": shape.documents,
            "document_tokens": shape.document_tokens,
            "question": _lengths(shape.question),
            "output": _lengths(shape.output),
            "offline_kv_blocks": setup.policy.offline_kv_blocks,
            "offline_seq_slots": setup.policy.offline_seq_slots,
            "forecasts": setup.policy.forecasts,
        }
    )


def setup_from_json(text: str) -> StubSetup:
    """The inverse of ``setup_to_json``."""
    given = json.loads(text)
    return StubSetup(
        model=given["model"],
        seed=given["seed"],
        shape=OfflineShape(
            lines=given["lines"],
            documents=given["documents"],
            document_tokens=given["document_tokens"],
            question=Lengths(**given["question"]),
            output=Lengths(**given["output"]),
        ),
        policy=StubPolicy(
            offline_kv_blocks=given["offline_kv_blocks"],
            offline_seq_slots=given["offline_seq_slots"],
            forecasts=given["forecasts"],
        ),
    )


def _lengths(lengths: Lengths) -> dict[str, float]:
    return {
        "median": lengths.median,
        "sigma": lengths.sigma,
        "low": lengths.low,
        "high": lengths.high,
    }
