"""docs/protocol.md holds both sides: what one writes the other reads, field for field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from weir_agent import wire
from weir_agent.chunks.spool import DiskFullError, Spool
from weir_agent.settings import AgentSettings
from weir_controlplane.agents import schemas
from weir_controlplane.dispatch.bounds import MAX_RESULT_LINE_BYTES
from weir_controlplane.dispatch.placement import OpenChunk, Room
from weir_controlplane.dispatch.result_lines import ResultLines

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text()

LEASE: dict[str, Any] = {
    "chunk_id": "chunk_1",
    "attempt": 3,
    "nonce": "n0",
    "lease_s": 90.0,
    "batch_id": "batch_1",
    "tenant": "acme",
    "service": "default",
    "model": "m",
    "revision": "",
    "endpoint": "/v1/completions",
    "lines": 32,
    "bytes": 1000,
    "tokens": 2000,
    "density": 1.5,
    "prefix_group": "g",
    "remaining_lines": 64,
    "deadline_s": 3600.0,
    "solo": False,
}


def fields(model: type[BaseModel]) -> set[str]:
    return set(model.model_fields)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (wire.SyncRequest, schemas.SyncRequest),
        (wire.SyncReply, schemas.SyncReply),
        (wire.Telemetry, schemas.Telemetry),
        (wire.LatencySummary, schemas.LatencySummary),
        (wire.SloReport, schemas.SloState),
        (wire.Policy, schemas.PolicyReply),
        (wire.Forecast, schemas.ForecastReply),
        (wire.Lease, schemas.Lease),
        (wire.Cancel, schemas.Cancel),
        (wire.HeldChunk, schemas.HeldChunk),
        (wire.ReturnedChunk, schemas.LeaseRef),
        (wire.Death, schemas.Death),
        (wire.ResidentLine, schemas.ResidentLine),
        (wire.Room, schemas.Room),
        (wire.Model, schemas.ServedModel),
        (wire.CommitRequest, schemas.CommitRequest),
        (wire.CommitReply, schemas.CommitReply),
    ],
    ids=lambda model: model.__name__,
)
def test_both_sides_name_the_same_fields(ours: type[BaseModel], theirs: type[BaseModel]) -> None:
    assert fields(ours) == fields(theirs)


def test_the_page_names_every_field_of_a_sync() -> None:
    words = set(re.findall(r"[a-z][a-z0-9_]+", PAGE))
    for model in (wire.SyncRequest, wire.SyncReply, wire.Telemetry, wire.Policy, wire.Lease):
        assert fields(model) <= words


def test_states_are_the_same() -> None:
    assert get_args(wire.AgentState) == get_args(schemas.AgentState)


def test_the_control_plane_reads_what_an_agent_sends() -> None:
    request = wire.SyncRequest(
        boot_id="boot",
        incarnation=None,
        sequence=1,
        service="default",
        models=(wire.Model(name="m", max_model_len=4096),),
        state="disk_full",
        room=wire.Room(lines=1, tokens=2, result_bytes=3),
        chunks=(wire.HeldChunk(chunk_id="c", attempt=1, nonce="n", lines_done=0),),
        returned=(wire.ReturnedChunk(chunk_id="c", attempt=1, nonce="n"),),
        deaths=(
            wire.Death(
                death_id="d",
                kind="hang",
                solo=True,
                resident=(wire.ResidentLine(chunk_id="c", attempt=1, line=7),),
            ),
        ),
        telemetry=wire.Telemetry(
            window_s=1.0,
            slo=(
                wire.SloReport(
                    metric="tbt", statistic="p99", threshold_s=0.1, measured_s=0.2, attained=False
                ),
            ),
        ),
    )
    read = schemas.SyncRequest.model_validate_json(request.model_dump_json())
    assert read.model_dump(mode="json") == request.model_dump(mode="json")


def test_an_agent_reads_what_the_control_plane_answers() -> None:
    reply = schemas.SyncReply(
        incarnation=4,
        next_sync_s=1.05,
        policy=schemas.PolicyReply(
            lease_s=10.0,
            offline_kv_blocks=100,
            offline_seq_slots=8,
            step_budget_s=None,
            forecast=schemas.ForecastReply(method="mean_sigma", online_kv_blocks=20),
        ),
        chunks=[schemas.Lease(**LEASE)],
        lost=["chunk_2"],
        cancel=[schemas.Cancel(chunk_id="chunk_3", reason="suspects")],
        deaths_accepted=["d"],
        adopted=[schemas.Lease(**LEASE)],
    )
    read = wire.SyncReply.model_validate_json(reply.model_dump_json())
    assert read.model_dump(mode="json") == reply.model_dump(mode="json")


def test_the_control_plane_reads_result_lines_of_an_agent() -> None:
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


def test_the_control_plane_takes_what_any_agent_may_send(tmp_path: Path) -> None:
    """A chunk fits by what the agent then reserves, and its upload by the server's bound."""
    line_bytes = AgentSettings.model_fields["result_max_bytes"]
    most = next(item.le for item in line_bytes.metadata if hasattr(item, "le"))
    assert most <= MAX_RESULT_LINE_BYTES
    spool = Spool(
        tmp_path, max_bytes=32 * most, result_max_bytes=most, volume=lambda _: (1 << 50, 0, 1 << 50)
    )
    room = Room(
        lines=1_000,
        tokens=1_000_000,
        result_bytes=spool.room_bytes,
        idle=False,
        line_result_bytes=spool.line_bytes,
    )
    for lines in (31, 32, 33):
        chunk = OpenChunk(chunk_id="c", position=0, lines=lines, tokens=1)
        lease = wire.Lease.model_validate({**LEASE, "lines": lines, "chunk_id": f"c{lines}"})
        if room.fits(chunk):
            spool.open(lease)
            spool.drop(lease.chunk_id)
        else:
            with pytest.raises(DiskFullError):
                spool.open(lease)
    spool.close()
