"""`python -m benchmarks.faults`: ten SIGKILLs each of agent, control plane and engine.

Whole processes, a real engine with a tiny model, the unmodified client. Every batch is a file in
the run folder, so that a run goes on where it was stopped. Prints a table and writes what was lost,
which must be nothing.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks import bounds
from benchmarks.claims import Claim, write_results
from tests.support.faults import VICTIMS, Aftermath, Victim, disturbed_batch
from tests.support.stack import Stack
from tests.support.tiny import write_tiny_model

FOLDER = Path(__file__).resolve().parents[1] / ".cache" / "faults"
# A batch that killed five engines is given up by design (§8.5), and a line that was twice alone in
# a dying engine fails: two kills a batch stay clear of both, so every line must have its answer.
KILLS_A_BATCH: dict[Victim, int] = {"agent": 3, "controlplane": 3, "engine": 2}
HEADER = ("victim", "kills", "status", "lines", "lost", "doubled", "failed", "online s", "s")


def finished_before(folder: Path, victim: Victim, seed: int) -> list[Aftermath]:
    """The batches that earlier runs kept, in order."""
    return [
        Aftermath(**json.loads(path.read_text(encoding="utf-8")))
        for path in sorted(folder.glob(f"{victim}-{seed}-*.json"))
    ]


def disturb(stack: Stack, victim: Victim, *, folder: Path, kills: int, seed: int) -> Iterator[None]:
    """Batches, until the victim was killed that often while one ran; each is kept."""
    before = finished_before(folder, victim, seed)
    done, number = sum(after.kills for after in before), len(before)
    while done < kills:
        number += 1
        wanted = min(KILLS_A_BATCH[victim], kills - done)
        after = disturbed_batch(stack, victim, kills=wanted, seed=1000 * seed + number)
        done += after.kills
        path = folder / f"{victim}-{seed}-{number:03}.json"
        path.write_text(json.dumps(asdict(after)) + "\n", encoding="utf-8")
        print(row(victim, after), flush=True)
        yield


def row(victim: Victim, after: Aftermath) -> str:
    """One batch as a line of the table."""
    back = "never" if after.online_back_s is None else f"{after.online_back_s:.1f}"
    cells = (
        *(victim, after.kills, after.status, after.lines, after.lost),
        *(after.doubled, after.failed, back, round(after.seconds)),
    )
    return "".join(str(cell).rjust(13) for cell in cells)


def claims(found: dict[Victim, list[Aftermath]], *, wanted: int) -> list[Claim]:
    """Kills made; lines lost and doubled, batches not completed, online not back: all zero."""
    made = []
    for victim, afters in found.items():
        kills = sum(after.kills for after in afters)
        made.append(
            Claim(
                id=f"faults/{victim}/kills",
                what=f"SIGKILLs of the {victim} at random moments of {len(afters)} batches",
                unit="count",
                value=kills,
                target=f">= {wanted}",
            )
        )
        if not kills:
            continue
        unanswered = sum(after.status != "completed" or after.failed > 0 for after in afters)
        gone = sum(after.online_back_s is None for after in afters)
        for name, what, value in (
            ("lost", "lines lost", sum(after.lost for after in afters)),
            ("doubled", "lines doubled", sum(after.doubled for after in afters)),
            ("incomplete", "batches not completed whole", unanswered),
            ("online", "batches after which online did not come back by itself", gone),
        ):
            made.append(
                Claim(
                    id=f"faults/{victim}/{name}",
                    what=f"SIGKILLs of the {victim}: {what}",
                    unit="count",
                    value=value,
                    target="== 0",
                )
            )
    return made


def run(victims: Sequence[Victim], *, folder: Path, kills: int, seed: int, batches: int) -> None:
    """Disturbs up to that many batches, on one stack that starts from nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="weir-faults-") as home:
        stack = Stack(Path(home), write_tiny_model(Path(home) / "model"))
        try:
            for victim in victims:
                for _ in disturb(stack, victim, folder=folder, kills=kills, seed=seed):
                    batches -= 1
                    if batches <= 0:
                        return
        finally:
            stack.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing, prints, writes; 1 when anything was lost or is still to be run."""
    parser = argparse.ArgumentParser(description="kills each process at random moments of a batch")
    parser.add_argument("--kills", type=bounds.count, default=10, help="of each process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--batches", type=bounds.count, default=1000, help="at most so many in this run"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="keeps every finished batch")
    parser.add_argument(
        "--victims", nargs="+", choices=VICTIMS, default=VICTIMS, help="only these now"
    )
    given = parser.parse_args(arguments)

    def missing(victim: Victim) -> bool:
        before = finished_before(given.folder, victim, given.seed)
        kills: int = given.kills
        return sum(after.kills for after in before) < kills

    # Ended from outside, the processes of the stack must not be left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("faults: terminated; run it again to go on"))
    print("".join(name.rjust(13) for name in HEADER))
    wanted = [victim for victim in given.victims if missing(victim)]
    if wanted:
        run(
            wanted,
            folder=given.folder,
            kills=given.kills,
            seed=given.seed,
            batches=given.batches,
        )
    left = [victim for victim in VICTIMS if missing(victim)]
    if left:
        print(f"still to be run: {', '.join(left)}; the same command goes on")
    found = {victim: finished_before(given.folder, victim, given.seed) for victim in VICTIMS}
    made = claims(found, wanted=given.kills)
    command = f"python -m benchmarks.faults --kills {given.kills} --seed {given.seed}"
    kept = {victim: [asdict(after) for after in afters] for victim, afters in found.items()}
    write_results("faults", made, command=command, seeds=[given.seed], more={"batches": kept})
    return 0 if all(claim.met is not False for claim in made) else 1


if __name__ == "__main__":
    sys.exit(main())
