#!/usr/bin/env python3
"""Counts the instructions of fixed work, and fails if a count exceeds benches/baseline.json by more than 5%.

    instructions.py COUNTED [--write]

COUNTED is the program of benches/counted.rs, built for release. callgrind counts the instructions. Unlike times, the
counts are almost the same in every run; only the random seed of the hash table differs. --write replaces the baseline.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

BASELINE = pathlib.Path(__file__).parent.parent / "benches/baseline.json"
MOST = 1.05
WORK = {
    "open": "open b: parse, validate, map",
    "plan": "plan b: lay out, emit the header",
    "write": "write b: the same, and gather",
    "find": "find and map every tensor of b by name",
}


def count(program, work):
    with tempfile.TemporaryDirectory() as directory:
        command = [
            "valgrind", "--tool=callgrind", "--toggle-collect=counted_work", f"--callgrind-out-file={directory}/out",
            program, work, f"{directory}/counted.safetensors",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(re.search(r"Collected : (\d+)", done.stderr).group(1))


def main():
    program = sys.argv[1]
    counts = {work: count(program, work) for work in WORK}
    if "--write" in sys.argv:
        BASELINE.write_text(json.dumps(counts, indent=2) + "\n")
    baseline = json.loads(BASELINE.read_text())
    failed = 0
    for work, name in WORK.items():
        ratio = counts[work] / baseline[work]
        failed += ratio > MOST
        verdict = "TOO MANY" if ratio > MOST else "ok"
        print(f"{name:40} {counts[work]:>12,} instructions, {100 * (ratio - 1):+.1f}% of the baseline: {verdict}")
    print(f"{len(WORK) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
