"""The path of a user on a real cluster: install, apply, chat, and a batch that finishes."""

from __future__ import annotations

import httpx

from e2e.support.jobs import ALL_ONCE, account, lines_of, until_complete
from e2e.support.manifests import EXAMPLES, MODEL, SERVICE, batch_job, example, llm_service
from e2e.support.platform import SHOP, Platform
from e2e.support.traffic import chat
from e2e.support.waiting import condition, until, until_condition

LINES = 300


def test_a_service_answers_through_its_kubernetes_service(service: Platform) -> None:
    with service.online() as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert chat(client, MODEL)


def test_a_batch_job_completes_beside_online_traffic(service: Platform, key: str) -> None:
    with service.traffic().running() as traffic:
        service.shop.apply(*batch_job("nightly-300", lines=LINES))
        job = until_complete(service.shop, "nightly-300")
    assert traffic.failures == []
    assert traffic.answers > 0
    assert job["status"]["counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    with service.batches(key) as client:
        assert account(client, job["status"]["batchID"], lines=LINES) == ALL_ONCE


def test_the_link_to_the_results_needs_no_key(service: Platform) -> None:
    job = service.shop.get("batchjob", "nightly-300") or {}
    link = httpx.URL(job["status"]["outputURI"])
    assert link.host == f"{service.control_plane_name}.{service.system.namespace}.svc"
    there = httpx.URL(service.control_plane)  # this machine does not ask the cluster's DNS
    url = link.copy_with(host=there.host, port=there.port)
    answer = httpx.get(url, timeout=60, trust_env=False).raise_for_status()
    assert len(lines_of(answer.text)) == LINES


def test_the_status_has_what_the_control_plane_measured(service: Platform) -> None:
    names = {pod["metadata"]["name"] for pod in service.replicas()}

    def is_told() -> bool:
        found = service.shop.get("llmservice", SERVICE)
        pods = ((found or {}).get("status") or {}).get("pods", ())
        return (
            condition(found, "SLOMet").get("status") == "True"
            and {pod["name"] for pod in pods if pod["policyFresh"]} == names
        )

    with service.traffic().running():
        until(is_told, "the objectives hold, and each pod has a policy")
        status = (service.shop.get("llmservice", SERVICE) or {})["status"]
    assert all(item["attained"] and item["measuredSeconds"] > 0 for item in status["slo"])
    for pod in status["pods"]:
        assert 0 < pod["offlineKVThresholdBlocks"] <= pod["totalKVBlocks"]


def test_the_examples_run_as_they_stand(service: Platform) -> None:
    for name in ("batchjob.yaml", "batchjob-configmap.yaml"):
        service.shop.run("apply", "-f", EXAMPLES / name)
    for name, lines in (("hello", 2), ("reviews", 1)):
        job = until_complete(service.shop, name)
        assert job["status"]["counts"] == {"total": lines, "completed": lines, "failed": 0}
        service.shop.run("wait", "--for=condition=Complete", f"bj/{name}", "--timeout=110s")


def test_a_uri_that_no_administrator_allowed_is_refused(service: Platform) -> None:
    manifest = EXAMPLES / "batchjob-uri.yaml"
    service.shop.run("apply", "-f", manifest)
    job = until_condition(service.shop, "batchjob", "nightly", "Failed")
    assert condition(job, "Failed")["reason"] == "Refused"
    assert "input.uri" in condition(job, "Failed")["message"]
    service.shop.run("delete", "-f", manifest, "--timeout=110s")


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
    )
    scaler = service.shop.get("horizontalpodautoscaler", name)
    assert scaler is not None
    assert scaler["spec"]["scaleTargetRef"]["kind"] == "LLMService"
    service.shop.run("delete", "llmservice", name)
    until(
        lambda: service.shop.get("deployment", name) is None,
        "its children go with it",
    )


def test_applying_twice_writes_nothing(service: Platform) -> None:
    def is_a_no_op() -> bool:
        before = service.shop.get("llmservice", SERVICE) or {}
        since = service.api.audit.position()
        service.shop.apply(llm_service())
        service.shop.apply(*batch_job("nightly-300", lines=LINES))
        after = service.shop.get("llmservice", SERVICE) or {}
        writes = service.api.audit.writes(since=since, namespace=SHOP)
        return (
            after["metadata"]["generation"] == before["metadata"]["generation"]
            # Ours alone; a call before may be written down late: then this is asked again.
            and not any(call.user_agent.startswith("kubectl") for call in writes)
        )

    until(is_a_no_op, "a second apply that writes nothing")


def test_the_release_tests_itself(service: Platform) -> None:
    assert "Succeeded" in service.helm.test()
