"""Several operators on a real API server: exactly one writes, whatever happens to the leader.

The audit log tells them apart by their User-Agent; all write under one field manager.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from e2e.cluster.api_server import ApiServer
from e2e.cluster.audit import Call
from e2e.cluster.kubectl import Kubectl
from tests.operator.runtime.test_operator import llmservice
from tests.support.operator_process import (
    PROGRAM,
    SHORT_LEASE,
    CuttableLine,
    OperatorProcess,
)
from tests.support.waiting import eventually
from weir_operator.leader.watchdog import EXIT_LEADERSHIP_LOST

pytestmark = pytest.mark.kubernetes

ENDS_WITHIN_S = 60  # of a busy machine
# An operator with a defect: its loop stands still for ever at an LLMService of this name.
HANGS = """
import sys, time
from weir_operator.reconcile import reconciler

plan = reconciler.plan_llmservice

def hang(observed):
    if observed.service["metadata"]["name"] == "hangs":
        time.sleep(3600)
    return plan(observed)

reconciler.plan_llmservice = hang
sys.argv = ["weir", "serve", "operator"]
from weir_cli.main import run
run()
"""


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
                settings=SHORT_LEASE,
            )
            for number, line in enumerate(self.lines)
        ]

    def start(self, program: Sequence[str] = PROGRAM) -> None:
        """Starts both as this program."""
        for operator in self.operators:
            operator.program = program
            operator.start(wait=False)

    def leader(self) -> tuple[OperatorProcess, OperatorProcess, CuttableLine]:
        """Who leads, who stands by, and the leader's line."""
        assert eventually(self._is_settled), self.operators
        first = 0 if self.operators[0].leads() else 1
        return self.operators[first], self.operators[1 - first], self.lines[first]

    def _is_settled(self) -> bool:
        """One leads and both are ready; one that a halt of the machine ended is started again."""
        for one in self.operators:
            if one.process is not None and one.process.poll() == EXIT_LEADERSHIP_LOST:
                one.start(wait=False)
        leading = [one for one in self.operators if one.leads()]
        return len(leading) == 1 and all(one.ready() for one in self.operators)

    def writes(self, *, since: int = 0) -> dict[str, list[Call]]:
        """What each replica wrote besides its Lease, after a position in the audit log."""
        calls = self.api_server.audit.writes(since=since, namespace=self.namespace)
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


MakePair = Callable[[], Pair]


@pytest.fixture
def make_pair(api_server: ApiServer, namespace: str, tmp_path: Path) -> Iterator[MakePair]:
    made: list[Pair] = []

    def make() -> Pair:
        made.append(Pair(api_server, namespace, tmp_path))
        return made[-1]

    yield make
    for pair in made:
        pair.close()


def image(kubectl: Kubectl) -> str:
    found = kubectl.get("deployment", "chat")
    return "" if found is None else str(found["spec"]["template"]["spec"]["containers"][0]["image"])


def ask_for(kubectl: Kubectl, tag: str) -> None:
    kubectl.apply(llmservice(engine={"image": f"example.org/engine:{tag}"}))


def shows(kubectl: Kubectl, tag: str) -> bool:
    return image(kubectl).endswith(f":{tag}")


def holder(kubectl: Kubectl) -> str:
    """Who holds the Lease, empty after it was given back."""
    lease = kubectl.get("lease", "weir-operator")
    return "" if lease is None else str(lease["spec"].get("holderIdentity") or "")


def managers(kubectl: Kubectl) -> set[str]:
    """Who applied fields of the Deployment."""
    shown = kubectl.run("get", "deployment/chat", "--output=json", "--show-managed-fields").json()
    fields = shown["metadata"]["managedFields"]
    return {entry["manager"] for entry in fields if entry["operation"] == "Apply"}


def test_one_of_two_writes_and_the_other_follows_a_kill(
    make_pair: MakePair, kubectl: Kubectl
) -> None:
    pair = make_pair()
    pair.start()
    leader, standby, _ = pair.leader()
    assert not standby.leads()
    ask_for(kubectl, "1")
    assert eventually(lambda: shows(kubectl, "1")), pair.operators
    assert pair.writes()[leader.name]
    assert pair.writes()[standby.name] == []
    # What a standby sees does not wait for it: it would come before all that is new later.
    assert standby.metric("weir_operator_queue_depth") == 0

    leader.send(signal.SIGKILL)
    leader.wait(ENDS_WITHIN_S)
    ask_for(kubectl, "2")
    assert eventually(lambda: shows(kubectl, "2")), pair.operators
    assert_apart(pair)
    assert managers(kubectl) == {"weir-operator"}

    # An orderly end hands over at once.
    leader.start()
    assert standby.leads()
    standby.send(signal.SIGTERM)
    assert standby.wait(ENDS_WITHIN_S) == 0
    assert not holder(kubectl).startswith(f"{standby.name}_")
    ask_for(kubectl, "3")
    assert eventually(lambda: shows(kubectl, "3")), pair.operators


def test_a_leader_whose_line_hangs_ends_before_another_writes(
    make_pair: MakePair, kubectl: Kubectl
) -> None:
    pair = make_pair()
    pair.start()
    leader, standby, line = pair.leader()
    ask_for(kubectl, "1")
    assert eventually(lambda: shows(kubectl, "1")), pair.operators
    line.cut()
    ask_for(kubectl, "2")
    assert leader.wait(ENDS_WITHIN_S) == EXIT_LEADERSHIP_LOST
    assert eventually(lambda: shows(kubectl, "2")), pair.operators
    assert standby.leads()
    line.mend()
    assert_apart(pair)

    # A process that stands still wakes up too late, and writes nothing.
    leader.start()
    standby.send(signal.SIGSTOP)
    ask_for(kubectl, "3")
    assert eventually(lambda: shows(kubectl, "3")), pair.operators
    before = len(pair.writes()[standby.name])
    standby.send(signal.SIGCONT)
    assert standby.wait(ENDS_WITHIN_S) == EXIT_LEADERSHIP_LOST
    assert len(pair.writes()[standby.name]) == before


def test_a_hung_handler_and_a_hung_api_server_leave_at_most_one_writer(
    make_pair: MakePair, kubectl: Kubectl
) -> None:
    pair = make_pair()
    pair.start(("-c", HANGS))
    leader, standby, _ = pair.leader()
    ask_for(kubectl, "1")
    assert eventually(lambda: shows(kubectl, "1")), pair.operators
    standby.send(signal.SIGKILL)  # the one that follows has no defect
    standby.wait(ENDS_WITHIN_S)
    standby.program = PROGRAM
    standby.start()
    kubectl.apply(llmservice("hangs"))
    assert leader.wait(ENDS_WITHIN_S) == EXIT_LEADERSHIP_LOST
    ask_for(kubectl, "2")
    assert eventually(lambda: shows(kubectl, "2")), pair.operators
    assert_apart(pair)
    assert eventually(lambda: kubectl.get("deployment", "hangs")), pair.operators

    # Nobody is answered: the leader ends, nobody takes over; then one does.
    kubectl.run("delete", "llmservice", "hangs")
    leader.start()
    before = pair.api_server.audit.position()
    for line in pair.lines:
        line.cut()
    assert standby.wait(ENDS_WITHIN_S) == EXIT_LEADERSHIP_LOST
    assert not leader.leads()
    ask_for(kubectl, "3")
    for line in pair.lines:
        line.mend()
    assert eventually(lambda: shows(kubectl, "3")), pair.operators
    assert_apart(pair, since=before)


def assert_apart(pair: Pair, *, since: int = 0) -> None:
    """The last write of one came before the first of the other."""
    spans = sorted(
        (calls[0].at, calls[-1].at) for calls in pair.writes(since=since).values() if calls
    )
    assert spans, pair.operators
    assert len(spans) == 1 or spans[0][1] < spans[1][0]


def test_who_may_not_see_everything_does_not_lead(
    api_server: ApiServer, namespace: str, kubectl: Kubectl, tmp_path: Path
) -> None:
    """It held the Lease and did nothing, and the alert that there is no leader was silent."""
    groups = ("", "apps", "coordination.k8s.io", "events.k8s.io", "networking.k8s.io", "policy")
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": namespace},
        "rules": [
            {"apiGroups": [group], "resources": ["*"], "verbs": ["*"]}
            for group in (*groups, "weir.dev")
        ],
    }
    kubectl.apply(role)
    bound = ("clusterrolebinding", namespace, f"--clusterrole={namespace}", "--user=op")
    kubectl.run("create", *bound)
    operator = OperatorProcess(
        "operator-8",
        tmp_path,
        kubeconfig=api_server.user_kubeconfig("op"),
        namespace=namespace,
        settings=SHORT_LEASE,
    )
    try:
        operator.start(wait=False)
        assert eventually(lambda: "horizontalpodautoscalers" in operator.get("readyz")), operator
        assert not operator.leads()
        assert operator.metric("weir_operator_leader") == 0
        ask_for(kubectl, "1")
        role["rules"] = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
        kubectl.apply(role)
        assert eventually(lambda: shows(kubectl, "1")), operator
    finally:
        operator.close()
        kubectl.run("delete", "clusterrole,clusterrolebinding", namespace)


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
        assert eventually(lambda: "no answer" in operator.get("readyz")), operator
        assert operator.get("healthz") == "ok\n"
        line.mend()
        assert eventually(operator.ready), operator
        ask_for(kubectl, "1")
        assert eventually(lambda: shows(kubectl, "1")), operator
        operator.send(signal.SIGTERM)
        assert operator.wait(ENDS_WITHIN_S) == 0
    except subprocess.TimeoutExpired:
        pytest.fail(f"it does not end: {operator}")
    finally:
        operator.close()
        line.close()
