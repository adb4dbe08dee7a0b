"""What every part of a BatchJob's plan reads: the parsed spec, and what was written before."""

from __future__ import annotations

from dataclasses import dataclass

from weir_operator.api.batchjob import BatchJobSpec, BatchJobStatus
from weir_operator.planning.kinds import FINALIZER
from weir_operator.planning.observed import ObservedBatchJob
from weir_operator.planning.types import InlineInput, Manifest, PutBatchJob, UriInput

ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
"""Statuses of a batch that never change again."""
UNCANCELLED = frozenset({"finalizing", "delivering"})
"""Every line has run: what is left is done in any case, and to cancel it changes nothing."""
MAX_CONFIG_MAP_BYTES = 1 << 20
READ_BEFORE = InlineInput(text="\n")
"""Stands for an input that was accepted before: of a job that is known it is not read."""
NOT_KEPT = "{}\n"
"""Stands in the operator's memory for an inline input that is never sent again."""


class InputMissingError(Exception):
    """The ConfigMap, or its key, is not there; the message names it."""


class InputTooLargeError(Exception):
    """The ConfigMap's value is too large, or not text."""


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """One BatchJob, parsed. ``status`` is what was written before."""

    uid: str
    namespace: str
    name: str
    generation: int
    spec: BatchJobSpec
    status: BatchJobStatus
    finalizer: bool
    observed: ObservedBatchJob

    def ended_as(self, condition: str) -> bool:
        """Whether ``condition`` (Complete or Failed) was written as True."""
        return any(
            item.type == condition and item.status == "True" for item in self.status.conditions
        )

    @property
    def ended(self) -> bool:
        """Whether the end was written: from then on nothing changes but the object's own end."""
        return self.ended_as("Complete") or self.ended_as("Failed")

    @property
    def live(self) -> bool:
        """Whether a batch exists that could still run."""
        report = self.observed.report
        if report is not None:
            return report.batch_id is not None and report.status not in ENDED
        return self.status.batch_id is not None and not self.ended

    @property
    def model(self) -> str | None:
        """The model's name in requests: as accepted, else as the service has it now."""
        if self.status.model is not None:
            return self.status.model
        service = self.observed.service
        if service is None:
            return None
        model = service["spec"].get("model") or {}
        return str(model.get("servedName") or service["metadata"]["name"])


def without_text(job: Manifest) -> Manifest:
    """A BatchJob as it is kept: its lines only while they could still be sent."""
    given = (job.get("spec") or {}).get("input") or {}
    status = job.get("status") or {}
    sent = status.get("batchID") or any(
        item.get("type") in {"Complete", "Failed"} and item.get("status") == "True"
        for item in status.get("conditions") or ()
    )
    if not sent or given.get("inline") is None:
        return job
    return {**job, "spec": {**job["spec"], "input": {**given, "inline": NOT_KEPT}}}


def context_of(observed: ObservedBatchJob) -> JobContext:
    """The context of an observed BatchJob.

    Raises:
        pydantic.ValidationError: the stored spec is not one of this version's.
    """
    metadata: Manifest = observed.job["metadata"]
    return JobContext(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        generation=metadata.get("generation", 0),
        spec=BatchJobSpec.model_validate(observed.job["spec"]),
        status=BatchJobStatus.model_validate(observed.job.get("status") or {}),
        finalizer=FINALIZER in (metadata.get("finalizers") or ()),
        observed=observed,
    )


def put_request(context: JobContext, model: str) -> PutBatchJob:
    """What the control plane should have.

    Raises:
        InputMissingError: the ConfigMap or its key is not there.
        InputTooLargeError: its value cannot be sent.
    """
    spec, given = context.spec, _input(context)
    # Should the control plane have lost the job meanwhile, it must not take the stand-in for its
    # input: by an id, here the job's own, an unknown one is 404.
    stand_in_id = context.uid if given is READ_BEFORE else None
    return PutBatchJob(
        uid=context.uid,
        namespace=context.namespace,
        name=context.name,
        service=spec.service_ref.name,
        model=model,
        endpoint=spec.endpoint,
        completion_window=spec.completion_window,
        priority=spec.priority,
        suspended=spec.suspend,
        deadline=spec.deadline,
        input=given,
        output_uri=spec.output.uri if spec.output else None,
        metadata=spec.metadata or {},
        batch_id=context.status.batch_id or stand_in_id,
    )


def _input(context: JobContext) -> InlineInput | UriInput:
    given = context.spec.input
    if given.uri is not None:
        return UriInput(uri=given.uri)
    if context.status.batch_id is not None or context.observed.report is not None:
        return READ_BEFORE  # the ConfigMap may be gone by now, the text not kept
    if given.inline is not None:
        return InlineInput(text=given.inline)
    return InlineInput(text=_config_map_text(context))


def _config_map_text(context: JobContext) -> str:
    reference = context.spec.input.config_map_key_ref
    if reference is None:
        raise InputMissingError("input: give one of uri, configMapKeyRef and inline")
    config_map = context.observed.config_map
    if config_map is None:
        raise InputMissingError(
            f"input.configMapKeyRef: there is no ConfigMap {reference.name}: create it"
        )
    if reference.key in (config_map.get("binaryData") or {}):
        raise InputTooLargeError(
            f"input.configMapKeyRef: {reference.name}/{reference.key} is binary: put the lines "
            "under data, as UTF-8 text"
        )
    text = (config_map.get("data") or {}).get(reference.key)
    if not text:
        raise InputMissingError(
            f"input.configMapKeyRef: ConfigMap {reference.name} has nothing under "
            f"{reference.key}: add the key"
        )
    if len(text.encode()) > MAX_CONFIG_MAP_BYTES:
        raise InputTooLargeError(
            f"input.configMapKeyRef: {reference.name}/{reference.key} is over 1 MiB: give the "
            "input by uri"
        )
    return str(text)
