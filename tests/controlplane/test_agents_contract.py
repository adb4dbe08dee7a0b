"""Both sides of the agent protocol read what the other writes (docs/protocol.md)."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from weir_agent import wire
from weir_controlplane.agents import schemas

PAIRS = [
    (wire.SyncRequest, schemas.SyncRequest),
    (wire.Telemetry, schemas.Telemetry),
    (wire.Room, schemas.Room),
    (wire.HeldChunk, schemas.HeldChunk),
    (wire.ReturnedChunk, schemas.LeaseRef),
    (wire.Death, schemas.Death),
    (wire.ResidentLine, schemas.ResidentLine),
    (wire.SyncReply, schemas.SyncReply),
    (wire.Policy, schemas.PolicyReply),
    (wire.Lease, schemas.Lease),
    (wire.Cancel, schemas.Cancel),
    (wire.CommitRequest, schemas.CommitRequest),
    (wire.CommitReply, schemas.CommitReply),
]


@pytest.mark.parametrize(("agent", "plane"), PAIRS, ids=[plane.__name__ for _, plane in PAIRS])
def test_both_sides_have_the_same_fields(agent: type[BaseModel], plane: type[BaseModel]) -> None:
    assert set(agent.model_fields) == set(plane.model_fields)


def test_the_plane_reads_a_full_sync_of_the_agent() -> None:
    sent = wire.SyncRequest(
        boot_id="b",
        incarnation=None,
        sequence=1,
        service="svc",
        models=(wire.Model(name="m", max_model_len=4096),),
        state="serving",
        room=wire.Room(lines=1, tokens=2, result_bytes=3),
        chunks=(wire.HeldChunk(chunk_id="c", attempt=1, nonce="n", lines_done=2),),
        returned=(wire.ReturnedChunk(chunk_id="d", attempt=1, nonce="n"),),
        deaths=(
            wire.Death(
                death_id="x",
                kind="hang",
                solo=True,
                resident=(wire.ResidentLine(chunk_id="c", attempt=1, line=5),),
            ),
        ),
        telemetry=wire.Telemetry(total_blocks=10, predictor_mape=0.1),
    )
    read = schemas.SyncRequest.model_validate_json(sent.model_dump_json())
    assert read.chunks[0].lines_done == 2
    assert read.returned[0].chunk_id == "d"
    assert read.deaths[0].resident[0].line == 5
    assert read.telemetry is not None
    assert read.telemetry.total_blocks == 10
    assert read.telemetry.predictor_mape == 0.1


def test_the_agent_reads_a_full_reply_of_the_plane() -> None:
    lease = schemas.Lease(
        chunk_id="chunk_1",
        attempt=2,
        nonce="n",
        lease_s=90.0,
        batch_id="b",
        tenant="t",
        service="svc",
        model="m",
        revision="",
        endpoint="/v1/completions",
        lines=8,
        bytes=100,
        tokens=50,
        density=1.5,
        prefix_group="g",
        remaining_lines=7,
        deadline_s=10.0,
        solo=True,
    )
    sent = schemas.SyncReply(
        incarnation=3,
        next_sync_s=1.0,
        policy=schemas.PolicyReply(
            lease_s=90.0,
            offline_kv_blocks=5,
            offline_seq_slots=2,
            step_budget_s=None,
            forecast=schemas.ForecastReply(method="quantile", online_kv_blocks=9),
        ),
        chunks=[lease],
        lost=["chunk_2"],
        cancel=[schemas.Cancel(chunk_id="chunk_3", reason="suspects")],
        deaths_accepted=["x"],
        adopted=[lease],
    )
    read = wire.SyncReply.model_validate_json(sent.model_dump_json())
    assert read.chunks[0].model_dump() == lease.model_dump()
    assert read.adopted[0].solo
    assert read.policy is not None
    assert read.policy.forecast.online_kv_blocks == 9
    assert read.cancel[0].reason == "suspects"


def test_the_plane_reads_a_result_line_of_the_agent() -> None:
    from weir_controlplane.dispatch.result_lines import ResultLines

    good = wire.ResultLine(
        line=1,
        request_id="r",
        response=wire.ResultResponse(status_code=200, request_id="q", body={"a": 1}),
        usage=wire.Usage(input_tokens=3, output_tokens=4),
    )
    bad = wire.ResultLine(
        line=2, request_id="r", error=wire.ResultError(code="too_long", message="no")
    )
    lines = ResultLines(expected={1, 2})
    for item in (good, bad):
        lines.feed(item.model_dump_json().encode() + b"\n")
    lines.end()
    assert (lines.completed_lines, lines.failed_lines) == (1, 1)
    assert lines.tokens["output_tokens"] == 4
    assert lines.ranges == [[1, 2]]
