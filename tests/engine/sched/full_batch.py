"""A batch whose slots all decode offline, and who joins it when requests end."""

from tests.engine.sched.mini_engine import MiniEngine, request

SLOTS, WAITING = 40, 4


def full(preset: str = "weir") -> MiniEngine:
    """An engine whose slots all decode offline, with more requests in the pool."""
    engine = MiniEngine(preset=preset, blocks=2000, max_seqs=SLOTS, max_batched_tokens=500)
    for at in range(SLOTS + WAITING):
        engine.add(request(f"off-{at:02}", online=False, prompt=4, output=40))
    engine.step()
    return engine


def admitted_after_each_end(engine: MiniEngine, ends: int = 3) -> list[int]:
    """Requests that join the batch in the step after each of so many ends."""
    admitted = []
    for at in range(ends):
        engine.abort(f"off-{at:02}")
        admitted.append(sum(work.admitted for work in engine.step().work))
    return admitted
