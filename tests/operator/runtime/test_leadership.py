"""Several operators on a real API server: exactly one writes, whatever happens to the leader.

The audit log tells them apart by their User-Agent.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.audit import Call
from e2e.cluster.kubectl import Kubectl
from tests.operator.runtime.test_operator import llmservice
from tests.support.operator_process import CuttableLine, OperatorProcess, until
from weir_operator.leader.watchdog import EXIT_LEADERSHIP_LOST

pytestmark = pytest.mark.kubernetes


class Pair:
    """Two replicas, each behind a line of its own."""

    def __init__(self, api_server: ApiServer, namespace: str, folder: Path) -> None:
        port = httpx.URL(api_server.endpoint.url).port
        assert port is not None
        self.api_server, self.namespace = api_server, namespace
        self.lines = [CuttableLine("127.0.0.1", port) for _ in range(2)]
        self.operators = [
            OperatorProcess(
                f"operator-{number}",
                folder,
                kubeconfig=line.kubeconfig(api_server.kubeconfig, folder / f"{number}.kubeconfig"),
                namespace=namespace,
            )
            for number, line in enumerate(self.lines)
        ]
        for operator in self.operators:
            operator.start(wait=False)

    def leader(self) -> tuple[OperatorProcess, OperatorProcess, CuttableLine]:
        """Who leads, who stands by, and the leader's line."""
        assert until(lambda: any(one.leads() for one in self.operators), 60), self.operators
        assert until(lambda: all(one.ready() for one in self.operators), 60), self.operators
        first = 0 if self.operators[0].leads() else 1
        return self.operators[first], self.operators[1 - first], self.lines[first]

    def writes(self) -> dict[str, list[Call]]:
        """What each replica wrote besides its Lease."""
        calls = self.api_server.audit.writes(namespace=self.namespace)
        return {
            one.name: [
                call
                for call in calls
                if call.user_agent == one.user_agent and call.resource != "leases"
            ]
            for one in self.operators
        }

    def close(self) -> None:
        for operator in self.operators:
            operator.close()
        for line in self.lines:
            line.close()


@pytest.fixture
def pair(api_server: ApiServer, namespace: str, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(api_server, namespace, tmp_path)
    yield made
    made.close()


def image(kubectl: Kubectl) -> str:
    found = kubectl.get("deployment", "chat")
    return "" if found is None else str(found["spec"]["template"]["spec"]["containers"][0]["image"])


def ask_for(kubectl: Kubectl, tag: str) -> None:
    kubectl.apply(llmservice(engine={"image": f"example.org/engine:{tag}"}))


def shows(kubectl: Kubectl, tag: str) -> bool:
    return image(kubectl).endswith(f":{tag}")


def test_one_of_two_writes_and_the_other_follows_a_kill(pair: Pair, kubectl: Kubectl) -> None:
    leader, standby, _ = pair.leader()
    assert not standby.leads()
    ask_for(kubectl, "1")
    assert until(lambda: shows(kubectl, "1"), 15), pair.operators
    assert pair.writes()[leader.name]
    assert pair.writes()[standby.name] == []

    leader.send(signal.SIGKILL)
    leader.wait(5)
    ask_for(kubectl, "2")
    assert until(lambda: shows(kubectl, "2"), 20), pair.operators
    assert_apart(pair)

    # An orderly end hands over at once.
    leader.start()
    assert standby.leads()
    standby.send(signal.SIGTERM)
    assert standby.wait(10) == 0
    ask_for(kubectl, "3")
    assert until(lambda: shows(kubectl, "3"), 6), pair.operators


def test_a_leader_whose_line_hangs_ends_before_another_writes(pair: Pair, kubectl: Kubectl) -> None:
    leader, standby, line = pair.leader()
    ask_for(kubectl, "1")
    assert until(lambda: shows(kubectl, "1"), 15), pair.operators
    line.cut()
    ask_for(kubectl, "2")
    assert leader.wait(9) == EXIT_LEADERSHIP_LOST  # 6 s to the deadline, at most 2 s to the end
    assert until(lambda: shows(kubectl, "2"), 15), pair.operators
    assert standby.leads()
    line.mend()
    assert_apart(pair)

    # A process that stands still wakes up too late, and writes nothing.
    leader.start()
    standby.send(signal.SIGSTOP)
    ask_for(kubectl, "3")
    assert until(lambda: shows(kubectl, "3"), 20), pair.operators
    before = len(pair.writes()[standby.name])
    standby.send(signal.SIGCONT)
    assert standby.wait(3) == EXIT_LEADERSHIP_LOST
    assert len(pair.writes()[standby.name]) == before


def assert_apart(pair: Pair) -> None:
    """The last write of one came before the first of the other."""
    spans = sorted((calls[0].at, calls[-1].at) for calls in pair.writes().values() if calls)
    assert len(spans) == 2, pair.operators
    assert spans[0][1] < spans[1][0]


def test_an_api_server_that_is_away_at_the_start_is_waited_for(
    api_server: ApiServer, namespace: str, kubectl: Kubectl, tmp_path: Path
) -> None:
    port = httpx.URL(api_server.endpoint.url).port
    assert port is not None
    line = CuttableLine("127.0.0.1", port)
    line.cut()
    operator = OperatorProcess(
        "operator-9",
        tmp_path,
        kubeconfig=line.kubeconfig(api_server.kubeconfig, tmp_path / "kubeconfig"),
        namespace=namespace,
        settings={"REQUEST_TIMEOUT_S": "1"},
    )
    try:
        operator.start(wait=False)
        assert until(lambda: "no answer" in operator.get("readyz"), 30), operator
        assert operator.get("healthz") == "ok\n"
        line.mend()
        assert until(operator.ready, 30), operator
        ask_for(kubectl, "1")
        assert until(lambda: shows(kubectl, "1"), 15), operator
        operator.send(signal.SIGTERM)
        assert operator.wait(10) == 0
    except subprocess.TimeoutExpired:
        pytest.fail(f"it does not end: {operator}")
    finally:
        operator.close()
        line.close()
