"""docs/protocol.md names everything that the operator and the control plane say to each other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from weir_controlplane.batchjobs import schemas as batchjobs
from weir_controlplane.llmservices import schemas as llmservices

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text()
SECTION = PAGE[PAGE.index("## The operator") :]


@pytest.mark.parametrize(
    "model",
    [
        batchjobs.PutBatchJob,
        batchjobs.JobInput,
        batchjobs.BatchJobView,
        batchjobs.RequestCounts,
        batchjobs.JobDelivery,
        batchjobs.BatchJobList,
        llmservices.PutService,
        llmservices.RegisteredPod,
        llmservices.PodStatus,
        llmservices.ServiceStatus,
    ],
    ids=lambda model: model.__name__,
)
def test_the_page_names_every_field(model: type[BaseModel]) -> None:
    words = set(re.findall(r"[a-z][a-z0-9_]+", SECTION))
    assert set(model.model_fields) <= words


def test_the_page_names_every_state() -> None:
    own = set(get_args(batchjobs.JobStatus)) | set(get_args(batchjobs.DeliveryState))
    as_in_batches = {"validating", "in_progress", "finalizing", "cancelling"}
    assert own - as_in_batches <= set(re.findall(r"`([a-z_]+)`", SECTION))
