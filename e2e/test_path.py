"""The path of a user on a real cluster: install, apply, chat, and a batch that finishes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from openai import OpenAI, OpenAIError

from e2e.support.platform import MODEL, Platform, batch_job
from e2e.support.waiting import until_condition

pytestmark = pytest.mark.timeout(900)

LINES = 300
START_S = 300
BATCH_S = 400


class OnlineTraffic:
    """Chats one after another for as long as it runs: answers and errors."""

    def __init__(self, client: OpenAI) -> None:
        self.answers = 0
        self.errors: list[str] = []
        self._client = client
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="online")

    @contextmanager
    def running(self) -> Iterator[OnlineTraffic]:
        """Chats while the block runs."""
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.2):
            try:
                chat(self._client)
            except OpenAIError as error:
                self.errors.append(str(error))
            else:
                self.answers += 1


def chat(client: OpenAI) -> str:
    """The answer to one question."""
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "How are you?"}], max_tokens=8
    )
    return answer.choices[0].message.content or ""


@pytest.fixture(scope="session")
def service(platform: Platform) -> Platform:
    """The platform with an LLMService that serves."""
    platform.make_service()
    until_condition(platform.shop, "llmservice", MODEL, "Available", within_s=START_S)
    return platform


def test_a_service_answers_through_its_kubernetes_service(service: Platform) -> None:
    with service.online() as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        assert chat(client)


def test_a_batch_job_completes_beside_online_traffic(service: Platform) -> None:
    with service.online() as online, OnlineTraffic(online).running() as traffic:
        service.shop.apply(*batch_job("nightly", lines=LINES))
        job = until_condition(service.shop, "batchjob", "nightly", "Complete", within_s=BATCH_S)
    assert traffic.errors == []
    assert traffic.answers > 0
    assert job["status"]["counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    with service.batches() as client:
        batch = client.batches.retrieve(job["status"]["batchID"])
        assert batch.output_file_id is not None
        lines = client.files.content(batch.output_file_id).text.splitlines()
    answered = [json.loads(line)["custom_id"] for line in lines]
    assert answered == [f"line-{number}" for number in range(LINES)]


def test_applying_twice_changes_nothing(service: Platform) -> None:
    before = service.shop.get("llmservice", MODEL)
    assert before is not None
    service.make_service()
    after = service.shop.get("llmservice", MODEL)
    assert after is not None
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_the_release_tests_itself(service: Platform) -> None:
    assert "Succeeded" in service.helm.test()
