"""Order, placement, poison and splitting: the pure decisions of dispatch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from weir_controlplane.dispatch.bounds import STARVED_S
from weir_controlplane.dispatch.order import Turns, Waiting, class_by_time, deadline_class
from weir_controlplane.dispatch.placement import OpenChunk, Place, Room, next_chunk
from weir_controlplane.dispatch.poison import Line, Suspicion, Verdict, after_death, pause_s
from weir_controlplane.dispatch.reasons import REASONS, FleetPod, waiting_reason
from weir_controlplane.dispatch.splitting import split
from weir_controlplane.store.line_index import IndexedLine

DOCS = Path(__file__).resolve().parents[2] / "docs"
HOUR_S = 3600.0


def waiting(batch_id: str, **given: float | str) -> Waiting:
    values = {
        "tenant_id": "t",
        "created_at": 0.0,
        "expires_at": 24 * HOUR_S,
        "waiting_since": 0.0,
        **given,
    }
    return Waiting(batch_id=batch_id, **values)  # type: ignore[arg-type]


def in_order(
    batches: list[Waiting], now_s: float, *, leased_tokens: dict[str, int]
) -> list[Waiting]:
    """The batches by their turns, where none of them takes anything."""
    turns = Turns(batches, now_s, leased_tokens=leased_tokens)
    ordered = []
    while (first := turns.first()) is not None:
        ordered.append(first)
        turns.passes()
    return ordered


def names(batches: list[Waiting]) -> list[str]:
    return [batch.batch_id for batch in batches]


def test_the_deadline_class_comes_first() -> None:
    batches = [
        waiting("later"),
        waiting("urgent", expires_at=HOUR_S / 2, tenant_id="busy"),
        waiting("soon", expires_at=5 * HOUR_S),
    ]
    ordered = in_order(batches, 10.0, leased_tokens={"busy": 10_000})
    assert names(ordered) == ["urgent", "soon", "later"]


def test_within_a_class_the_tenant_with_the_least_work_out_comes_first() -> None:
    batches = [waiting("a", tenant_id="x"), waiting("b", tenant_id="y", waiting_since=50.0)]
    assert names(in_order(batches, 60.0, leased_tokens={"x": 500})) == ["b", "a"]
    assert names(in_order(batches, 60.0, leased_tokens={})) == ["a", "b"]


def test_no_batch_starves_under_endless_urgent_ones() -> None:
    """Whatever has waited long enough is as urgent as anything, and the longest wait wins."""
    old = waiting("old")
    served: list[str] = []
    since = {"u1": 0.0, "u2": 0.0}
    for minute in range(20):
        now_s = 60.0 * minute
        urgent = [
            waiting(name, expires_at=now_s + 60, waiting_since=at, created_at=now_s)
            for name, at in since.items()
        ]
        first = in_order([old, *urgent], now_s, leased_tokens={})[0].batch_id
        served.append(first)
        if first in since:
            since[first] = now_s
    assert "old" in served[: int(STARVED_S // 60) + 3]


def first_anew(queue: list[Waiting], now_s: float, out: dict[str, int], served: set[str]) -> str:
    """Whose turn it is, with all batches put in order for this one turn."""

    def among_tenants(batch: Waiting) -> int:
        if deadline_class(batch, now_s) == class_by_time(batch, now_s):
            return class_by_time(batch, now_s)
        own = [class_by_time(item, now_s) for item in queue if item.tenant_id == batch.tenant_id]
        return min(own) if batch.tenant_id in served else 0

    first = min(
        queue,
        key=lambda item: (
            among_tenants(item),
            out.get(item.tenant_id, 0),
            deadline_class(item, now_s),
            -item.priority,
            item.waiting_since,
            item.batch_id,
        ),
    )
    return first.batch_id


@given(
    st.lists(
        st.tuples(
            st.sampled_from("xyz"),
            st.sampled_from([HOUR_S, 6 * HOUR_S, 24 * HOUR_S]),
            st.sampled_from([0.0, 690.0, 900.0]),
            st.integers(-1, 1),
            st.integers(1, 4),
        ),
        max_size=8,
    ),
    st.dictionaries(st.sampled_from("xyz"), st.integers(0, 5)),
    st.sets(st.sampled_from("xyz")),
)
def test_turns_are_as_if_all_were_put_in_order_for_each(
    batches: list[tuple[str, float, float, int, int]], out: dict[str, int], served: set[str]
) -> None:
    """The order changes with what each turn takes; nothing of it is remembered wrongly."""
    now_s = 1000.0
    chunks = {f"b{number}": item[-1] for number, item in enumerate(batches)}
    queue = [
        Waiting(
            batch_id=f"b{number}",
            tenant_id=tenant,
            created_at=0.0,
            expires_at=now_s + left_s,
            waiting_since=since,
            priority=priority,
        )
        for number, (tenant, left_s, since, priority, _) in enumerate(batches)
    ]
    turns = Turns(queue, now_s, leased_tokens=out, served=served)
    while (first := turns.first()) is not None:
        assert first.batch_id == first_anew(queue, now_s, out, served)
        chunks[first.batch_id] -= 1
        turns.took(2, has_more=bool(chunks[first.batch_id]))
        out[first.tenant_id] = out.get(first.tenant_id, 0) + 2
        served.add(first.tenant_id)
        queue = [item for item in queue if item.batch_id != first.batch_id]
        if chunks[first.batch_id]:
            queue.append(replace(first, waiting_since=now_s))
    assert not queue


def chunks(*positions: int) -> list[OpenChunk]:
    return [
        OpenChunk(chunk_id=f"c{place:04}", position=place, lines=8, tokens=100)
        for place in positions
    ]


def place(position: int) -> Place:
    return (position, f"c{position:04}")


def picked(opened: list[OpenChunk], own: int | None, others: list[int]) -> int:
    found = next_chunk(
        opened,
        own=None if own is None else place(own),
        others=[place(position) for position in others],
    )
    assert found is not None
    return found.position


def test_a_pod_goes_on_where_it_is() -> None:
    assert picked(chunks(3, 4, 5, 9), own=2, others=[7]) == 3
    assert picked(chunks(0, 9), own=2, others=[7]) == 0  # nothing on, so back


def test_an_idle_pod_steals_from_the_other_end_of_the_longest_run() -> None:
    opened = chunks(*range(1, 100))
    assert picked(opened, own=None, others=[0]) == 99
    assert picked(chunks(*range(100)), own=None, others=[]) == 0
    assert picked(chunks(*range(1, 99)), own=None, others=[0, 99]) == 50  # both ends are taken


def test_two_pods_meet_without_interleaving() -> None:
    opened = chunks(*range(20))
    held: dict[str, list[int]] = {"a": [], "b": []}
    for _ in range(10):
        for name, other in (("a", "b"), ("b", "a")):
            own = held[name][-1] if held[name] else None
            position = picked(opened, own, held[other][-1:])
            held[name].append(position)
            opened = [chunk for chunk in opened if chunk.position != position]
    assert sorted(held["a"]) == list(range(10))
    assert sorted(held["b"]) == list(range(10, 20))


@given(
    opened=st.sets(st.integers(0, 60), min_size=1),
    others=st.sets(st.integers(0, 60)),
    own=st.none() | st.integers(0, 60),
)
def test_whenever_a_chunk_is_open_one_is_found(
    opened: set[int], others: set[int], own: int | None
) -> None:
    free = sorted(opened - others)
    if free:
        assert picked(chunks(*free), own, sorted(others)) in free
    assert next_chunk([], own=None, others=[]) is None


def test_room_binds_and_an_idle_pod_takes_one_chunk_of_any_size() -> None:
    large = OpenChunk(chunk_id="c", position=0, lines=50, tokens=9_000)
    busy = Room(lines=10, tokens=1_000, result_bytes=1 << 30, idle=False)
    idle = Room(lines=10, tokens=1_000, result_bytes=1 << 30, idle=True)
    assert not busy.fits(large)
    assert idle.fits(large)
    assert idle.less(large) == Room(
        lines=0, tokens=0, result_bytes=(1 << 30) - large.result_bytes(None), idle=False
    )
    assert not Room(lines=10, tokens=1_000, result_bytes=100, idle=True).fits(large)
    assert not Room(lines=0, tokens=1_000, result_bytes=1 << 30, idle=True).fits(large)


def test_a_chunk_fits_when_the_agent_can_reserve_its_worst_case() -> None:
    chunk = OpenChunk(chunk_id="c", position=0, lines=8, tokens=100)
    room = Room(
        lines=100, tokens=10_000, result_bytes=8 << 20, idle=False, line_result_bytes=1 << 20
    )
    assert room.fits(chunk)
    assert not room.less(chunk).fits(chunk)  # nothing is left to reserve
    assert not replace(room, line_result_bytes=(1 << 20) + 1).fits(chunk)


def dies(
    *lines: Line, before: Verdict | None = None, known: dict[Line, Suspicion] | None = None
) -> Verdict:
    counts = dict(before.batch_deaths) if before else {}
    return after_death(
        lines, known=known or dict(before.lines if before else {}), batch_deaths=counts
    )


def test_rule_5_a_line_fails_after_two_deaths_as_the_only_offline_line() -> None:
    """§8.5: residents become suspects; two deaths alone and the line fails."""
    first = dies(("b", 1), ("b", 2))
    assert {line: item.state for line, item in first.lines.items()} == {
        ("b", 1): "suspect",
        ("b", 2): "suspect",
    }
    second = dies(("b", 1), before=first)
    assert second.lines[("b", 1)].state == "suspect"
    third = dies(("b", 1), before=Verdict(lines={**first.lines, **second.lines}))
    assert third.lines[("b", 1)].state == "failed"
    assert ("b", 2) not in third.lines


def test_rule_5_after_five_deaths_by_one_batch_its_other_suspects_fail() -> None:
    """§8.5: and another batch's suspects do not."""
    known = {("b", n): Suspicion(deaths=1) for n in range(1, 9)} | {("c", 1): Suspicion(deaths=1)}
    verdict = after_death([("b", 1)], known=known, batch_deaths={"b": 4})
    assert verdict.batch_deaths == {"b": 5}
    assert {line for line, item in verdict.lines.items() if item.state == "failed"} == {
        ("b", n) for n in range(1, 9)
    }
    mixed = after_death([("b", 1), ("c", 1)], known=known, batch_deaths={"b": 4})
    assert mixed.batch_deaths == {}  # nobody can say whose line it was
    assert all(item.state == "suspect" for item in mixed.lines.values())


def test_rule_5_deaths_whose_suspects_have_all_answered_do_not_count() -> None:
    """§8.5: a batch is to blame for those that are not explained otherwise."""
    cleared = {("b", n): Suspicion(state="cleared", deaths=1) for n in range(1, 9)}
    verdict = after_death([("b", 9), ("b", 1)], known=cleared, batch_deaths={"b": 4})
    assert verdict.batch_deaths == {"b": 1}
    assert {item.state for item in verdict.lines.values()} == {"suspect"}
    for state in ("suspect", "failed"):
        known = {**cleared, ("b", 8): Suspicion(state=state, deaths=1)}
        verdict = after_death([("b", 9), ("b", 1)], known=known, batch_deaths={"b": 4})
        assert verdict.batch_deaths == {"b": 5}
        assert {item.state for item in verdict.lines.values()} == {"failed"}


def test_rule_5_a_death_without_suspects_pauses_the_pod_longer_each_time() -> None:
    """§8.5: deaths without suspects pause the pod's dispatch."""
    assert after_death([], known={}, batch_deaths={}).pause
    assert not dies(("b", 1)).pause
    waits = [pause_s(count) for count in range(1, 12)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (60.0, 900.0)


@given(
    deaths=st.lists(
        st.lists(st.tuples(st.sampled_from("bc"), st.integers(1, 4)), max_size=4), max_size=15
    )
)
def test_rule_5_no_line_fails_without_cause(deaths: list[list[Line]]) -> None:
    """§8.5: a failed line died twice alone, or its batch caused five deaths; it stays failed."""
    known: dict[Line, Suspicion] = {}
    counts: dict[str, int] = {}
    alone: Counter[Line] = Counter()
    for resident in deaths:
        if len(set(resident)) == 1 and known.get(resident[0], Suspicion()).state != "failed":
            alone[resident[0]] += 1
        verdict = after_death(resident, known=known, batch_deaths=counts)
        failed = {line for line, item in known.items() if item.state == "failed"}
        known |= verdict.lines
        counts |= verdict.batch_deaths
        assert all(known[line].state == "failed" for line in failed)
    for line, item in known.items():
        if item.state == "failed":
            assert alone[line] >= 2 or counts[line[0]] >= 5
        else:
            assert alone[line] < 2


@given(
    lines=st.sets(st.integers(1, 40)),
    done=st.sets(st.integers(1, 40)),
    suspects=st.sets(st.integers(1, 40)),
    failed=st.sets(st.integers(1, 40)),
)
def test_splitting_puts_every_line_into_exactly_one_part(
    lines: set[int], done: set[int], suspects: set[int], failed: set[int]
) -> None:
    index = [
        IndexedLine(line=line, offset_bytes=line, length_bytes=1, tokens=1)
        for line in sorted(lines)
    ]
    parts = split(index, done=done, suspects=suspects, failed=failed)
    together = [*parts.rest, *parts.alone, *parts.failed, *parts.done]
    assert sorted(together) == index
    assert {item.line for item in parts.done} == lines & done
    assert not {item.line for item in parts.rest} & (suspects | failed)


def test_rule_12_a_waiting_batch_has_a_reason() -> None:
    """§8.12: NoMatchingModel and the others, in the order in which they are helped."""
    pod = FleetPod(service="s", models={"m": "r1"}, serving=True, paused=False, crowded=False)
    starting = replace(pod, serving=False)
    paused = replace(pod, paused=True)
    crowded = replace(pod, crowded=True)

    def reason(fleet: list[FleetPod], model: str = "m", revision: str | None = None) -> str | None:
        return waiting_reason(model=model, revision=revision, service=None, fleet=fleet)

    assert reason([]) == "NoMatchingModel"
    assert reason([pod], model="other") == "NoMatchingModel"
    assert reason([pod], revision="r0") == "RevisionGone"
    assert reason([starting]) == "NoServingPod"
    assert reason([paused]) == "PodsPaused"
    assert reason([crowded, paused, starting]) == "NoOfflineSlots"
    assert reason([crowded, pod]) is None
    assert reason([pod, paused, starting], revision="r1") is None
    assert (
        waiting_reason(model="m", revision=None, service="other", fleet=[pod]) == "NoMatchingModel"
    )


def test_every_reason_to_wait_is_explained() -> None:
    for page in ("protocol.md", "runbooks.md", "troubleshooting.md", "dashboards.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        assert [name for name in REASONS if name not in text] == [], page
