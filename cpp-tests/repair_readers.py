"""Other readers open files that the command repaired, and read every byte.

    repair_readers.py COMMAND [WHEEL]

COMMAND is the built `safealign`. WHEEL is the file of chess-cv 0.7.2, three real models that MLX wrote; without it the
wheel is fetched from the package index, and where that cannot be, the exit status is 77: skipped.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import mlx.core as mx
import numpy as np
import safetensors
from safetensors import safe_open

PACKAGE = "chess-cv==0.7.2"
SKIPPED = 77

checks = 0


def check(holds, *what):
    global checks
    checks += 1
    if not holds:
        raise SystemExit(f"check failed: {' '.join(map(str, what))}")


def run(command, *arguments, status=0):
    done = subprocess.run([command, *map(str, arguments)], capture_output=True, text=True)
    check(done.returncode == status, arguments, "exit status", done.returncode, done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def scanned(command, path, status=0):
    lines = run(command, "scan", "--json", "--check", path, status=status)
    return {Path(line["path"]).name: line for line in lines if line["kind"] == "file"}


def same_bytes(one, other):
    """Of two MLX arrays; NaN is equal to itself here, and BF16 has no counterpart in numpy."""
    one, other = (np.array(array.flatten().view(mx.uint8)) for array in (one, other))
    return one.tobytes() == other.tobytes()


def check_equal_in_mlx(before, after):
    old, old_metadata = mx.load(str(before), return_metadata=True)
    new, new_metadata = mx.load(str(after), return_metadata=True)
    check(old.keys() == new.keys(), after.name, "names")
    check(old_metadata == new_metadata, after.name, "metadata", old_metadata, new_metadata)
    for name, array in old.items():
        check(array.dtype == new[name].dtype and array.shape == new[name].shape, after.name, name)
        check(array.size == 0 or same_bytes(array, new[name]), after.name, name, "bytes")


def check_equal_in_reference(before, after):
    old, new = (dict(safetensors.deserialize(path.read_bytes())) for path in (before, after))
    check(old == new, after.name, "the reference reads other tensors")
    with safe_open(after, framework="numpy") as file:
        check(set(file.keys()) == old.keys(), after.name, "names")


def wheel_of(arguments, directory):
    if arguments:
        return Path(arguments[0])
    download = ["download", PACKAGE, "--no-deps", "--only-binary=:all:", "--python-version", "3.13", "--quiet"]
    done = subprocess.run([sys.executable, "-m", "pip", *download, "--dest", directory], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"skipped: {PACKAGE} cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
        raise SystemExit(SKIPPED)
    return next(Path(directory).glob("*.whl"))


def check_real_models(command, wheel, directory):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".safetensors")]
        archive.extractall(directory, names)
    check(len(names) == 3, "models in the wheel:", names)
    old = directory / "old"
    old.mkdir()
    for name in names:
        shutil.move(directory / name, old)
    for name, found in scanned(command, old, status=1).items():
        check((found["misaligned_tensors"], found["tensors"]) == (10, 10), name, "before", found)
    # Into a directory, and in place.
    run(command, "repair", old, "--output", directory / "new")
    shutil.copytree(old, directory / "in-place")
    run(command, "repair", directory / "in-place", "--in-place")
    run(command, "overlay", old, directory / "overlay")
    for place in ("new", "in-place", "overlay"):
        after = scanned(command, directory / place)
        check(len(after) == 3, place, after)
        for name, found in after.items():
            check((found["misaligned_tensors"], found["tensors"]) == (0, 10), name, "after", found)
            check_equal_in_mlx(old / name, directory / place / name)
            check_equal_in_reference(old / name, directory / place / name)
        run(command, "verify", old, directory / place)


def check_cases(command, directory):
    cases = Path(__file__).parent.parent / "tests/cases"
    repaired = 0
    for case in json.loads((cases / "manifest.json").read_text()):
        if case["open"] != "SA_OK":
            continue
        source, target = cases / case["file"], directory / "cases" / case["file"]
        run(command, "repair", "--force", "--drop-trailing", source, "--output", target.parent)
        run(command, "verify", source, target)
        if case["mlx_open"] == "ok":
            check_equal_in_mlx(source, target)
        if case["reference_open"] == "ok":
            check_equal_in_reference(source, target)
        repaired += 1
    check(repaired > 30, repaired)


def main():
    command, *rest = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        check_cases(command, directory)
        check_real_models(command, wheel_of(rest, directory), directory)
    print(f"{checks} checks passed")


main()
