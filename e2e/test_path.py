"""The path of a user on a real cluster: install, apply, chat, and a batch that finishes."""

from __future__ import annotations

from e2e.support.jobs import ALL_ONCE, account, until_complete
from e2e.support.manifests import EXAMPLES, MODEL, SERVICE, batch_job, example, llm_service
from e2e.support.platform import SHOP, Platform
from e2e.support.traffic import chat
from e2e.support.waiting import condition, until, until_condition

LINES = 300
BATCH_S = 300


def test_a_service_answers_through_its_kubernetes_service(service: Platform) -> None:
    with service.online() as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert chat(client, MODEL)


def test_a_batch_job_completes_beside_online_traffic(service: Platform, key: str) -> None:
    with service.traffic().running() as traffic:
        service.shop.apply(*batch_job("nightly-300", lines=LINES))
        job = until_complete(service.shop, "nightly-300", within_s=BATCH_S)
    assert traffic.failures == []
    assert traffic.answers > 0
    assert job["status"]["counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    with service.batches(key) as client:
        assert account(client, job["status"]["batchID"], lines=LINES) == ALL_ONCE


def test_the_status_has_what_the_control_plane_measured(service: Platform) -> None:
    """The traffic of the batch before was less than a minute ago."""
    found = until_condition(service.shop, "llmservice", SERVICE, "SLOMet", within_s=30)
    assert all(item["attained"] and item["measuredSeconds"] > 0 for item in found["status"]["slo"])
    pods = found["status"]["pods"]
    assert {pod["name"] for pod in pods} == {pod["metadata"]["name"] for pod in service.replicas()}
    for pod in pods:
        assert pod["policyFresh"]
        assert 0 < pod["offlineKVThresholdBlocks"] <= pod["totalKVBlocks"]


def test_the_examples_run_as_they_stand(service: Platform) -> None:
    for name in ("batchjob.yaml", "batchjob-configmap.yaml"):
        service.shop.run("apply", "-f", EXAMPLES / name)
    for name, lines in (("hello", 2), ("reviews", 1)):
        service.shop.run("wait", "--for=condition=Complete", f"bj/{name}", "--timeout=120s")
        job = service.shop.get("batchjob", name) or {}
        assert job["status"]["counts"] == {"total": lines, "completed": lines, "failed": 0}


def test_a_uri_that_no_administrator_allowed_is_refused(service: Platform) -> None:
    manifest = EXAMPLES / "batchjob-uri.yaml"
    service.shop.run("apply", "-f", manifest)
    job = until_condition(service.shop, "batchjob", "nightly", "Failed", within_s=60)
    assert condition(job, "Failed")["reason"] == "Refused"
    assert "input.uri" in condition(job, "Failed")["message"]
    service.shop.run("delete", "-f", manifest, "--timeout=60s")


def test_a_service_that_needs_gpus_says_that_there_are_none(service: Platform) -> None:
    (manifest,) = example("llmservice-autoscaled.yaml")
    name = manifest["metadata"]["name"]
    service.shop.apply(manifest)
    until(
        lambda: (
            "nvidia.com/gpu"
            in condition(service.shop.get("llmservice", name), "Available").get("message", "")
        ),
        "the condition names the device that is missing",
        within_s=60,
    )
    scaler = service.shop.get("horizontalpodautoscaler", name)
    assert scaler is not None
    assert scaler["spec"]["scaleTargetRef"]["kind"] == "LLMService"
    service.shop.run("delete", "llmservice", name)
    until(
        lambda: service.shop.get("deployment", name) is None,
        "its children go with it",
        within_s=60,
    )


def test_applying_twice_writes_nothing(service: Platform) -> None:
    before = service.shop.get("llmservice", SERVICE) or {}
    since = service.api.audit.position()
    service.shop.apply(llm_service())
    service.shop.apply(*batch_job("nightly-300", lines=LINES))
    after = service.shop.get("llmservice", SERVICE) or {}
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    writes = service.api.audit.writes(since=since, namespace=SHOP)
    ours = [call for call in writes if call.user_agent.startswith("kubectl")]
    assert ours == []


def test_the_release_tests_itself(service: Platform) -> None:
    assert "Succeeded" in service.helm.test()
