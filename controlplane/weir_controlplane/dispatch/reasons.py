"""Why a batch gets nothing at the moment: pure (§8.12)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Reason = Literal[
    "InputMissing",
    "NoMatchingModel",
    "RevisionGone",
    "NoServingPod",
    "PodsPaused",
    "NoOfflineSlots",
]
REASONS: tuple[Reason, ...] = get_args(Reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetPod:
    """A live pod. ``models``: revision by name.

    ``crowded``: its policy has had no offline slots for a while; online requests need its blocks.
    """

    service: str
    models: Mapping[str, str]
    serving: bool
    paused: bool
    crowded: bool

    @property
    def takes_lines(self) -> bool:
        """Whether it runs batch lines now, as far as its state goes."""
        return self.serving and not self.paused and not self.crowded


def waiting_reason(
    *, model: str, revision: str | None, service: str | None, fleet: Iterable[FleetPod]
) -> Reason | None:
    """Why no pod can take chunks of such a batch; None when one can."""
    pods = [pod for pod in fleet if service in {None, pod.service} and model in pod.models]
    if not pods:
        return "NoMatchingModel"
    pods = [pod for pod in pods if revision in {None, pod.models[model]}]
    if not pods:
        return "RevisionGone"
    pods = [pod for pod in pods if pod.serving]
    if not pods:
        return "NoServingPod"
    pods = [pod for pod in pods if not pod.paused]
    if not pods:
        return "PodsPaused"
    return "NoOfflineSlots" if all(pod.crowded for pod in pods) else None
