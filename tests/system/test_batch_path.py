"""The whole path over real HTTP: unmodified client, control plane, agent, real vLLM."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import httpx2  # what the client speaks HTTP with
import openai
import pytest
from openai import OpenAI
from typing_extensions import override

from tests.support.batches import (
    as_jsonl,
    assert_each_line_once,
    finished,
    line,
    results,
    shared_document_lines,
    submit,
)
from tests.support.stack import MODEL, Stack
from tests.support.waiting import eventually

pytestmark = [pytest.mark.system, pytest.mark.vllm, pytest.mark.timeout(600)]
CHAT = "/v1/chat/completions"


def chat_line(custom_id: str, **body: object) -> dict[str, object]:
    messages = [{"role": "user", "content": f"question {custom_id}"}]
    return line(custom_id, url=CHAT, **{"messages": messages, **body})


def test_600_lines_are_answered_once_and_in_order(stack: Stack) -> None:
    client = stack.client()
    lines = shared_document_lines(600, documents=40, document_tokens=150)
    batch = finished(client, submit(client, as_jsonl(lines)).id)
    assert batch.status == "completed"
    assert batch.error_file_id is None
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed) == (600, 600)
    found = results(client, batch)
    assert_each_line_once(found, lines)
    assert found.custom_ids == [item["custom_id"] for item in lines]
    for item in found.output:
        assert item["response"]["status_code"] == 200
        assert item["response"]["body"]["usage"]["completion_tokens"] == 8
        assert item["error"] is None
    assert batch.usage is not None
    assert batch.usage.output_tokens == 600 * 8
    assert batch.usage.input_tokens_details.cached_tokens > 0


def test_the_same_line_gives_what_the_online_endpoint_gives(stack: Stack) -> None:
    client = stack.client()
    batch = finished(client, submit(client, as_jsonl([chat_line("a")]), endpoint=CHAT).id)
    (answered,) = results(client, batch).output
    online = stack.online().chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "question a"}],
        max_tokens=8,
        temperature=0,
    )
    assert answered["response"]["body"]["object"] == "chat.completion"
    assert answered["response"]["body"]["choices"][0]["message"]["content"] == (
        online.choices[0].message.content
    )


GOOD = line("good")
CONTENT_ERRORS = {
    "invalid_json_line": (as_jsonl([GOOD]) + b"{broken\n", 2),
    "duplicate_custom_id": (as_jsonl([GOOD, line("b"), GOOD]), 3),
    "url_mismatch": (as_jsonl([GOOD, chat_line("b")]), 2),
    "model_mismatch": (as_jsonl([GOOD, line("b", model="another")]), 2),
    "empty_file": (b"", None),
}


@pytest.mark.parametrize("code", CONTENT_ERRORS)
def test_content_errors_fail_the_batch_before_any_line_runs(stack: Stack, code: str) -> None:
    """design.md §8.6: the five codes, each with its line."""
    content, at_line = CONTENT_ERRORS[code]
    client = stack.client()
    batch = finished(client, submit(client, content).id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.code, error.line) for error in batch.errors.data] == [(code, at_line)]
    assert batch.output_file_id is None
    assert batch.error_file_id is None


def test_execution_errors_are_their_lines_alone(stack: Stack) -> None:
    """design.md §8.5: a line's own error is a result, never a retry."""
    client = stack.client()
    wrong = {
        "too-long": chat_line("too-long", messages=[{"role": "user", "content": "x" * 2000}]),
        "bad-parameter": chat_line("bad-parameter", temperature=-1),
        "unknown-role": chat_line("unknown-role", messages=[{"role": "judge", "content": "x"}]),
    }
    lines = [chat_line("first"), *wrong.values(), chat_line("last")]
    batch = finished(client, submit(client, as_jsonl(lines), endpoint=CHAT).id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 3)
    found = results(client, batch)
    assert [item["custom_id"] for item in found.output] == ["first", "last"]
    assert [item["custom_id"] for item in found.errors] == list(wrong)
    for custom_id in wrong:
        answer = found.error(custom_id)
        assert answer["error"] is None
        assert 400 <= answer["response"]["status_code"] < 500
        assert answer["response"]["body"]["error"]["message"]


def test_a_batch_of_errors_only_has_no_output_file(stack: Stack) -> None:
    """design.md §8.6: empty files are not made."""
    client = stack.client()
    batch = finished(client, submit(client, as_jsonl([line("a", temperature=-1)])).id)
    assert batch.status == "completed"
    assert batch.output_file_id is None
    assert [item["custom_id"] for item in results(client, batch).errors] == ["a"]


def test_cancel_keeps_what_is_done(stack: Stack) -> None:
    """design.md §8.6: what is committed stays, once; the rest says batch_cancelled."""
    client = stack.client()
    # More than any machine gets done between two looks at the batch.
    lines = shared_document_lines(3000, documents=4, document_tokens=200, max_tokens=64)
    batch = submit(client, as_jsonl(lines))

    def some_done() -> bool:
        counts = client.batches.retrieve(batch.id).request_counts
        return counts is not None and counts.completed > 0

    assert eventually(some_done)
    assert client.batches.cancel(batch.id).status in {"cancelling", "cancelled"}
    ended = finished(client, batch.id)
    assert ended.status == "cancelled"
    found = results(client, ended)
    assert_each_line_once(found, lines)
    assert 0 < len(found.output) < len(lines)
    assert {item["error"]["code"] for item in found.errors} == {"batch_cancelled"}
    assert {item["response"] for item in found.errors} == {None}


def test_a_terminal_batch_cannot_be_cancelled(stack: Stack) -> None:
    client = stack.client()
    batch = finished(client, submit(client, as_jsonl([line("a")])).id)
    with pytest.raises(openai.BadRequestError):
        client.batches.cancel(batch.id)


class LosesFirstCreate(httpx2.HTTPTransport):
    """The answer to the first POST /batches is lost on its way."""

    lost = False

    @override
    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = super().handle_request(request)
        if request.method == "POST" and request.url.path.endswith("/batches") and not self.lost:
            self.lost = True
            response.close()
            raise httpx2.ReadError("lost", request=request)
        return response


def test_the_clients_own_retry_makes_no_second_batch(stack: Stack) -> None:
    """design.md §8.7."""
    transport = LosesFirstCreate()
    with httpx2.Client(transport=transport, base_url=f"{stack.controlplane.url}/v1") as http:
        client = OpenAI(base_url=http.base_url, api_key=stack.key("retries"), http_client=http)
        batch = submit(client, as_jsonl([line("a")]))
        assert transport.lost
        assert [item.id for item in client.batches.list()] == [batch.id]
        assert finished(client, batch.id).status == "completed"


def test_twenty_clients_at_once(stack: Stack) -> None:
    def one(number: int) -> list[str]:
        client = stack.client(f"crowd-{number % 4}")
        lines = [line(f"{number}-{index}") for index in range(5)]
        batch = finished(client, submit(client, as_jsonl(lines)).id)
        assert batch.status == "completed"
        return results(client, batch).custom_ids

    for tenant in range(4):
        stack.key(f"crowd-{tenant}")
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(one, range(20)))
    assert answers == [[f"{number}-{index}" for index in range(5)] for number in range(20)]


def test_another_tenant_sees_nothing(stack: Stack) -> None:
    owner, stranger = stack.client("owner"), stack.client("stranger")
    batch = finished(owner, submit(owner, as_jsonl([line("a")])).id)
    assert batch.output_file_id is not None
    for call in (
        lambda: stranger.batches.retrieve(batch.id),
        lambda: stranger.batches.cancel(batch.id),
        lambda: stranger.files.retrieve(batch.input_file_id),
        lambda: stranger.files.content(batch.output_file_id or ""),
        lambda: stranger.files.delete(batch.input_file_id),
        lambda: stranger.batches.create(
            input_file_id=batch.input_file_id,
            endpoint="/v1/completions",
            completion_window="24h",
        ),
    ):
        with pytest.raises(openai.NotFoundError):
            call()
    assert list(stranger.batches.list()) == []
    assert list(stranger.files.list()) == []


def test_online_streams_while_a_batch_runs(stack: Stack) -> None:
    client = stack.client()
    lines = shared_document_lines(200, documents=4, document_tokens=200, max_tokens=32)
    batch = submit(client, as_jsonl(lines))
    texts = []
    for number in range(5):
        stream = stack.online().completions.create(
            model=MODEL, prompt=f"hello {number}", max_tokens=16, temperature=0, stream=True
        )
        texts.append("".join(chunk.choices[0].text for chunk in stream if chunk.choices))
    assert all(texts)
    assert finished(client, batch.id).status == "completed"


def test_the_online_endpoint_cannot_claim_the_offline_class(stack: Stack) -> None:
    """design.md §9: class cannot be claimed from outside; what is sent is ignored."""
    answer = httpx.post(
        f"{stack.agent.url}/v1/completions",
        headers={"X-Vllm-Priority": "1000"},
        json={
            "model": MODEL,
            "prompt": "hello",
            "max_tokens": 4,
            "priority": 1000,
            "vllm_xargs": {"weir": json.dumps({"class": "offline"})},
        },
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 4
