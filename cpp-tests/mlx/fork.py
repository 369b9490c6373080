"""Follows the fork guide, and checks what it says about the files and the number of changed lines.

    fork.py BEFORE AFTER SOURCES GUIDE DIRECTORY

BEFORE and AFTER are the programs of fork/before.cpp and fork/after.cpp.
"""

import difflib
import re
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import safetensors

from interpose import check, misaligned


def saved_by(program, directory):
    done = subprocess.run([program, directory], check=True, capture_output=True, text=True)
    mapped = re.findall(r"(\d+) of (\d+) arrays are mapped", done.stdout)
    return directory / "path.safetensors", directory / "writer.safetensors", [(int(of), int(all)) for of, all in mapped]


def tensors(path):
    """Names and values as the reference reads them, whatever their order in the file."""
    return {name: (one["dtype"], one["shape"], bytes(one["data"])) for name, one in safetensors.deserialize(path.read_bytes())}


def raw(array):
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array).tobytes()


def main():
    mx.set_default_device(mx.cpu)
    before, after, sources, guide, directory = (Path(argument) for argument in sys.argv[1:])
    directory.mkdir(parents=True, exist_ok=True)
    old_path, old_writer, old_mapped = saved_by(before, directory / "before")
    new_path, new_writer, new_mapped = saved_by(after, directory / "after")
    for path in (old_path, old_writer):
        check(misaligned(path), path, "the control has no misaligned tensor")
    for path in (new_path, new_writer):
        check(not misaligned(path), path, "misaligned:", misaligned(path))
    check(new_path.read_bytes() == new_writer.read_bytes(), "the writer gets other bytes than the file")
    check(all(mapped == 0 for mapped, _ in old_mapped) and len(old_mapped) == 2, old_mapped)
    check(all(mapped == all for mapped, all in new_mapped) and len(new_mapped) == 2, new_mapped)
    check(tensors(new_path) == tensors(old_path), "the tensors are not the same")
    for name, array in mx.load(str(new_path)).items():
        check(raw(array) == tensors(old_path)[name][2], name, "stock MLX reads something else")

    lines = list(
        difflib.unified_diff(*((sources / name).read_text().splitlines() for name in ("before.cpp", "after.cpp")), n=0)
    )[2:]
    come = [line[1:].strip() for line in lines if line.startswith("+")]
    go = [line for line in lines if line.startswith("-")]
    text = guide.read_text(encoding="utf-8")
    claimed = re.search(r"\*\*(\d+) lines and removes (\d+)\*\*", text)
    check(claimed, guide, "does not say how many lines change")
    check(claimed.groups() == (str(len(come)), str(len(go))), guide, claimed[0], "but it is", len(come), len(go))
    for line in come:
        check(line in text, guide, "does not show", line)
    print(f"{len(come)} lines added, {len(go)} removed; arrays mapped before {old_mapped}, after {new_mapped}")


main()
