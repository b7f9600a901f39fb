"""`make redteam`: damaged files of every format and requests of every kind; commands that are killed, interrupted, in
folders and on clocks that misbehave, with full disks and little memory; many classes and fits. Counts for each outcome.

python tests/redteam [--inputs 300] [--kills 20] [--no-limits] [--only WORD] [--seed 0]
"""

from __future__ import annotations

import argparse
import signal
import sys
import time

import studio
import torch
from commands import DISTURBANCES, LINES, disturbed
from formats import FORMATS
from fuzz import BAD, fuzz
from kills import COMMANDS, disturb, fill_disk, lose_workers, race, vanish
from limits_of_size import MAX_GROWTH, leak, thousand_classes
from memory import COMMANDS as LIMITED
from memory import LIMITS, limited
from service import REQUESTS, attack

COLUMNS = ("refused", "same", "other", *BAD)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--inputs", type=int, default=300, help="damaged files of each format, and requests of each kind"
    )
    parser.add_argument("--kills", type=int, default=20, help="runs of each command under each disturbance")
    parser.add_argument("--only", default="", help="disturbances of commands whose row has this word")
    parser.add_argument(
        "--limits", action=argparse.BooleanOptionalAction, default=True, help="commands with little memory"
    )
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # threads do not survive a fork
    began = time.monotonic()
    bad = damaged_files(chosen.inputs, chosen.seed) if chosen.inputs else []
    if chosen.inputs:
        bad += damaged_requests(chosen.inputs, chosen.seed)
    if chosen.kills:
        bad += disturbed_commands(chosen.kills, chosen.seed, chosen.only)
    if chosen.limits:
        bad += limited_commands()
        bad += sizes()
    print(f"\n{time.monotonic() - began:.0f} s")
    for example in bad[:40]:
        print(example, file=sys.stderr)
    sys.exit(1 if bad else 0)


def damaged_files(inputs: int, seed: int) -> list[str]:
    """Print counts by format; the inputs that ended badly."""
    total, bad, peak = dict.fromkeys(COLUMNS, 0), [], 0
    print(f"| format | inputs | {' | '.join(COLUMNS)} | peak MB |")
    print(f"|---|---:|{'---:|' * len(COLUMNS)}---:|")
    for form in FORMATS:
        tally = fuzz(form, inputs, seed)
        cells = [tally.counts[name] for name in COLUMNS]
        for name, n in zip(COLUMNS, cells, strict=True):
            total[name] += n
        bad += [f"{form.name}: {example}" for example in tally.examples]
        peak = max(peak, tally.peak)
        print(f"| {form.name} | {sum(cells)} | {' | '.join(map(str, cells))} | {tally.peak >> 20} |", flush=True)
    print(f"| all | {sum(total.values())} | {' | '.join(map(str, total.values()))} | {peak >> 20} |")
    return bad


def damaged_requests(requests: int, seed: int) -> list[str]:
    """Print counts by kind of request to a service; those that ended badly."""
    bad = []
    print(f"\n| request | requests | {' | '.join(COLUMNS)} | MB at the end |")
    print(f"|---|---:|{'---:|' * len(COLUMNS)}---:|", flush=True)
    for name in REQUESTS:
        tally = attack(name, requests, seed)
        cells = " | ".join(str(tally.counts[column]) for column in COLUMNS)
        print(f"| {name} | {sum(tally.counts.values())} | {cells} | {tally.peak >> 20} |", flush=True)
        bad += tally.examples
    return bad


def disturbed_commands(runs: int, seed: int, only: str = "") -> list[str]:
    """Print counts by command and disturbance; those that did not end as an undisturbed run does."""
    bad = []
    print("\n| command | disturbance | runs | kills | identical | lost | errors |")
    print("|---|---|---:|---:|---:|---:|---:|", flush=True)
    rows = [(c.name, "SIGKILL, continued", lambda c=c: disturb(c, runs, seed)) for c in COMMANDS]
    evaluations = [c for c in COMMANDS if c.name.startswith("evaluate")]
    rows += [(c.name, "Ctrl-C, continued", lambda c=c: disturb(c, runs, seed, by=signal.SIGINT)) for c in evaluations]
    rows += [(c.name, "folder moved away", lambda c=c: vanish(c, runs, seed)) for c in evaluations[:2]]
    rows += [("evaluate, Dask", "workers killed", lambda: lose_workers(runs, seed))]
    filled = [c for c in COMMANDS if "," not in c.name]
    rows += [(c.name, "full disk, continued", lambda c=c: fill_disk(c, runs, seed)) for c in filled]
    rows += [("evaluate", "two at once", lambda: race(runs))]
    rows += [
        (f"fewcal {name}", what, lambda n=name, d=disturb: disturbed(n, runs, seed, d))  # type: ignore[misc]
        for what, disturb in DISTURBANCES.items()
        for name in LINES
    ]
    rows += [
        ("fewcal studio", "SIGKILL", lambda: studio.kill_server(runs, seed)),
        ("fewcal studio", "Ctrl-C", lambda: studio.interrupt(runs, seed)),
        ("fewcal studio", "two at once", lambda: studio.race(runs)),
    ]
    for name, what, work in rows:
        if only not in f"{name}, {what}":
            continue
        found = work()
        cells = [found.runs, found.kills, found.identical, found.lost, found.errors]
        print(f"| {name} | {what} | {' | '.join(map(str, cells))} |", flush=True)
        if found.identical < found.runs or found.lost or found.errors:
            bad.append(f"{name}, {what}: {found}")
    return bad


def limited_commands() -> list[str]:
    """Print counts by command; those that did not end in a result or a line."""
    outcomes, bad = ("done", "refused", "traceback", "hang", "crash"), []
    print(f"\n| command, with {', '.join(f'{limit / 1e9:.1f}' for limit in LIMITS)} GB | {' | '.join(outcomes)} |")
    print(f"|---|{'---:|' * len(outcomes)}", flush=True)
    for name, command in LIMITED.items():
        found = limited(command)
        print(f"| {name} | {' | '.join(str(found.counts[outcome]) for outcome in outcomes)} |", flush=True)
        bad += found.examples
    return bad


def sizes() -> list[str]:
    """Print counts of a service with a thousand classes, and what 2,000 fits leave in memory."""
    wrong, left = thousand_classes(200), leak(2000)
    print("\n| size | trials | failures |\n|---|---:|---:|")
    print(f"| 1,000 classes over HTTP | 200 | {wrong} |")
    print(f"| fits in one process, {left / 1e6:.1f} MB left | 2000 | {int(left > MAX_GROWTH)} |", flush=True)
    return [f"1,000 classes: {wrong} wrong"] * (wrong > 0) + [f"2,000 fits left {left} bytes"] * (left > MAX_GROWTH)


if __name__ == "__main__":
    main()
