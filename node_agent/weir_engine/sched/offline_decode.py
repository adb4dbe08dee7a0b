"""Where an offline request decodes: on the GPU, or on the CPU lane and back."""

from dataclasses import replace

from weir_engine.config import Policy
from weir_engine.latency.models import LatencyModel
from weir_engine.request import Request
from weir_engine.sched.cpu_lane import CpuLaneView
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.state import SchedulerState


class OfflineDecodeControl:
    """Moves decodes that a step has no room for to the CPU lane, and takes them back.

    A request that online work displaces moves there too, instead of being computed again, as long
    as host memory lasts. One is taken back when every decode on the GPU runs, the step has room for
    it, and no offline prompt is waiting that would take the room first.

    Source: OmniServe §3.3.5 and §3.2.4 (a request comes back only between two tokens).
    """

    def __init__(self, state: SchedulerState, lane: CpuLaneView, model: LatencyModel) -> None:
        self._state = state
        self._lane = lane
        self._model = model

    def fill(self, draft: StepDraft, policy: Policy, base_s: float, limit_s: float) -> None:
        """Changes the draft; ``base_s`` is what its online work takes, ``limit_s`` the bound."""
        room = self._displaced(draft, self._lane.room_tokens)
        if limit_s <= base_s:  # nothing offline runs in this step: they wait for the next
            return
        left_out = self._left_out(draft)
        for request in left_out:
            if request.known_tokens <= room:
                room -= request.known_tokens
                freed = self._state.kv.releasable_blocks([request.id])
                draft.drop(request, freed, reason="offline-to-cpu", to_cpu=True)
        if not left_out:
            self._recall(draft, policy, limit_s)

    def _displaced(self, draft: StepDraft, room: int) -> int:
        for at, given in enumerate(draft.preempt):
            request = self._state.running_offline.get(given.request_id)
            if request is None or not self._may_leave(request):
                continue
            if request.known_tokens <= room:
                room -= request.known_tokens
                draft.preempt[at] = replace(given, to_cpu=True)
        return room

    def _left_out(self, draft: StepDraft) -> list[Request]:
        planned = {work.request_id for work in draft.work}
        return [
            request
            for request in self._state.running_offline.values()
            if self._may_leave(request)
            and request.id not in planned
            and request.id not in draft.preempted
        ]

    def _may_leave(self, request: Request) -> bool:
        ends = request.output_tokens >= request.max_output_tokens  # its last token is in flight
        return request.is_decoding and not ends and request.id not in self._lane.landing

    def _recall(self, draft: StepDraft, policy: Policy, limit_s: float) -> None:
        prefills = any(work.reason in {"offline-prefill", "offline-admit"} for work in draft.work)
        if prefills or draft.seqs_left < 1 or draft.offline_seqs >= policy.offline_seq_slots:
            return
        for request_id in self._lane.between_tokens[:1]:
            request = self._state.on_cpu[request_id]
            blocks = draft.blocks_for(0, request.known_tokens)
            fits = draft.offline_blocks + blocks <= policy.offline_kv_blocks
            step_s = self._model.predict(draft.shape.with_decode(request.known_tokens))
            if fits and blocks <= draft.blocks_left and step_s <= limit_s:
                draft.take_blocks(blocks, offline=True)
                draft.recall.append(request_id)
