"""`python -m benchmarks.faults`: ten SIGKILLs each of agent, control plane and engine.

Whole processes, a real engine with a tiny model, the unmodified client. Prints a table and writes
what was lost, which must be nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.claims import Claim, write_results
from tests.support.faults import VICTIMS, Aftermath, Victim, disturbed_batch
from tests.support.stack import Stack
from tests.support.tiny import write_tiny_model

KILLS_A_BATCH = 3


def disturb(stack: Stack, victim: Victim, *, kills: int, seed: int) -> Iterator[Aftermath]:
    """Batches, until the victim was killed that often while one ran."""
    done, number = 0, 0
    while done < kills:
        number += 1
        wanted = min(KILLS_A_BATCH, kills - done)
        after = disturbed_batch(stack, victim, kills=wanted, seed=1000 * seed + number)
        done += after.kills
        yield after


def claims(found: dict[Victim, list[Aftermath]]) -> list[Claim]:
    """Lines lost and doubled, batches not completed, online not back: all zero."""
    made = []
    for victim, afters in found.items():
        kills = sum(after.kills for after in afters)
        unanswered = sum(after.status != "completed" or after.failed > 0 for after in afters)
        for name, what, value in (
            ("lost", "lines lost", sum(after.lost for after in afters)),
            ("doubled", "lines doubled", sum(after.doubled for after in afters)),
            ("incomplete", "batches not completed whole", unanswered),
            ("online", "times online did not come back", sum(not a.online_back for a in afters)),
        ):
            made.append(
                Claim(
                    id=f"faults/{victim}/{name}",
                    what=f"{kills} SIGKILLs of the {victim}: {what}",
                    unit="count",
                    value=value,
                    target="== 0",
                )
            )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs, prints and writes; 1 when anything was lost."""
    parser = argparse.ArgumentParser(description="kills each process at random moments of a batch")
    parser.add_argument("--kills", type=int, default=10, help="of each process")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    found: dict[Victim, list[Aftermath]] = {}
    header = ("victim", "kills", "status", "lines", "lost", "doubled", "failed", "online", "s")
    print("".join(name.rjust(13) for name in header))
    with tempfile.TemporaryDirectory(prefix="weir-faults-") as folder:
        model = write_tiny_model(Path(folder) / "model")
        stack = Stack(Path(folder), model)
        try:
            for victim in VICTIMS:
                found[victim] = []
                for after in disturb(stack, victim, kills=given.kills, seed=given.seed):
                    found[victim].append(after)
                    row = (
                        *(victim, after.kills, after.status, after.lines, after.lost),
                        *(after.doubled, after.failed, "back" if after.online_back else "gone"),
                        round(after.seconds),
                    )
                    print("".join(str(cell).rjust(13) for cell in row), flush=True)
        finally:
            stack.close()
    made = claims(found)
    command = f"python -m benchmarks.faults --kills {given.kills} --seed {given.seed}"
    write_results("faults", made, command=command, seeds=[given.seed])
    return 0 if all(claim.met for claim in made) else 1


if __name__ == "__main__":
    sys.exit(main())
