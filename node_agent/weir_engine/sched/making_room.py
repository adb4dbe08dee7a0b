"""KV blocks and slots for an online request that lacks them: whom the step takes them from."""

from weir_engine.request import Request
from weir_engine.sched.both_ends import BothEnds
from weir_engine.sched.draft import StepDraft
from weir_engine.sched.preemption import Displaceable, Lack, online_victim
from weir_engine.sched.state import SchedulerState


class MakingRoom:
    """Makes room in a step's draft for one online request.

    Fronts of offline's blocks, where the engine has them, are taken before any request gives way:
    nothing is computed again. Then offline requests give way, those that lose least first, and at
    last online requests that came later.

    Source: HyGen Algorithm 1, phase ONLINE; BROS §5.2.
    """

    def __init__(self, state: SchedulerState, ends: BothEnds) -> None:
        self._state = state
        self._ends = ends

    def make(
        self,
        draft: StepDraft,
        request: Request,
        blocks: int,
        *,
        slots: int = 0,
        admit: bool = False,
    ) -> bool:
        """Preempt until ``blocks`` and ``slots`` are free; False when the request must wait.

        ``admit``: it is not running yet, and makes no other online request give way.
        """
        kv = self._state.kv
        lacking = blocks - draft.blocks_left
        if not (slots or admit) and self._ends.claimed(draft, lacking) is not None:
            return True
        offline = Displaceable(
            [
                candidate
                for candidate in self._state.running_offline.values()
                if candidate.id not in draft.preempted
            ],
            releasable=kv.releasable_blocks,
            adopted_blocks=draft.adopted_blocks,
        )
        victims = offline.victims(Lack(lacking, slots))
        if victims is None and admit:
            return False
        for victim, freed in offline.everyone() if victims is None else victims:
            draft.drop(victim, freed, reason="online-needs-room")
        if victims is not None:
            return True
        planned = {work.request_id for work in draft.work}
        while blocks > draft.blocks_left:
            others = [
                other
                for other in self._state.running_online.values()
                if other.id not in draft.preempted and other.id not in planned
            ]
            last = online_victim(others, request)
            if last is None:
                return False
            draft.drop(last, kv.releasable_blocks([last.id]), reason="online-earlier-needs-room")
        return True
