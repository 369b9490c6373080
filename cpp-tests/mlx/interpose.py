"""Unmodified Python MLX with the interposer in LD_PRELOAD, beside the same without it.

    interpose.py INTERPOSER OTHER DIRECTORY READELF

OTHER is an interposer that was built for another version of MLX, or empty. What is compared runs in processes of its own, as
`interpose.py role NAME ARGUMENTS`.
"""

import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

WIDTHS = {"16": 2, "32": 4, "64": 8}
MIB = 1 << 20


def misaligned(path):
    """Names of the tensors that a loader which maps has to copy, by a parser of our own."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return [
        name
        for name, entry in header.items()
        for begin, end in [entry["data_offsets"]]
        if end > begin and (8 + length + begin) % WIDTHS.get(entry["dtype"][-2:], 1) != 0
    ]


# The roles. Only they import MLX.


def weights(mx, rows=64):
    mx.random.seed(5)
    return {
        "a": mx.arange(3).astype(mx.uint8),
        "w": mx.random.normal((rows, 256)),
        "h": mx.random.normal((33, 5)).astype(mx.bfloat16),
        "t": mx.random.normal((40, 8)).astype(mx.float16).T,
        "s": mx.array(2.5),
    }


def role_outputs(mx, directory, tag, source):
    """Saves as `tag` where that is the source too, loads what `source` saved, computes, and leaves the outputs' bytes."""
    import mlx.nn as nn
    import numpy as np
    from mlx.utils import tree_map

    def model():
        mx.random.seed(11)
        made = nn.Sequential(
            nn.Embedding(50, 64), nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.RMSNorm(128), nn.Linear(128, 64)
        )
        nn.quantize(made, group_size=64, bits=4, class_predicate=lambda _, m: isinstance(m, nn.Linear))
        return made

    directory = Path(directory)
    mx.random.seed(7)
    layer = dict(zip(("w", "scales", "biases"), mx.quantize(mx.random.normal((96, 128)), group_size=64, bits=4)))
    x = mx.random.normal((5, 128))
    tokens = mx.random.randint(0, 50, (2, 9))
    if tag == source:
        mx.save_safetensors(str(directory / f"layer-{tag}.safetensors"), layer, metadata={"by": tag})
        model().save_weights(str(directory / f"model-{tag}.safetensors"))
    loaded, metadata = mx.load(str(directory / f"layer-{source}.safetensors"), return_metadata=True)
    assert metadata == {"by": source}, metadata
    outputs = [
        mx.quantized_matmul(x, loaded["w"], loaded["scales"], loaded["biases"], transpose=True, group_size=64, bits=4)
    ]
    fresh = model()
    fresh.update(tree_map(mx.zeros_like, fresh.parameters()))  # so that only the file can bring the right values
    fresh.load_weights(str(directory / f"model-{source}.safetensors"))
    outputs.append(fresh(tokens))
    outputs.append(mx.compile(lambda a: fresh(a) * 2 + 1)(tokens))
    Path(directory / f"out-{tag}-from-{source}").write_bytes(b"".join(np.array(one).tobytes() for one in outputs))


def role_objects(mx, directory):
    """Saves to everything that Python can write to; each has to get what a file of that name gets."""
    directory = Path(directory)
    arrays = weights(mx, rows=4096)  # 4 MiB: more than a pipe holds
    mx.save_safetensors(str(directory / "path.safetensors"), arrays)
    expected = (directory / "path.safetensors").read_bytes()

    memory = io.BytesIO()
    mx.save_safetensors(memory, arrays)
    assert memory.getvalue() == expected, "BytesIO"

    with open(directory / "file.safetensors", "wb") as file:
        mx.save_safetensors(file, arrays)
    assert (directory / "file.safetensors").read_bytes() == expected, "file"

    for buffering in (0, -1):
        end, start = os.pipe()
        got = []
        with os.fdopen(end, "rb") as reader:
            thread = threading.Thread(target=lambda: got.append(reader.read()))
            thread.start()
            with os.fdopen(start, "wb", buffering=buffering) as writer:
                assert not writer.seekable()
                mx.save_safetensors(writer, arrays)
            thread.join()
        assert got == [expected], f"pipe, buffering {buffering}"

    with open(directory / "cat.safetensors", "wb") as out:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=out) as cat:
            mx.save_safetensors(cat.stdin, arrays)
            cat.stdin.close()
    assert (directory / "cat.safetensors").read_bytes() == expected, "a process"

    # pathlib, and a name without the extension.
    mx.save_safetensors(directory / "pathlib", arrays)
    assert (directory / "pathlib.safetensors").read_bytes() == expected, "pathlib"

    class Full(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            raise OSError(28, "the disk is full")

    try:
        mx.save_safetensors(Full(), arrays)
    except Exception as error:
        assert "the disk is full" in str(error), error
    else:
        raise AssertionError("an error of the file object is lost")


def role_values(mx, directory):
    """Saves and loads, and says what came back."""
    import numpy as np

    path = str(Path(directory) / "values.safetensors")
    arrays = weights(mx)
    mx.save_safetensors(path, arrays)
    loaded = mx.load(path)
    assert loaded.keys() == arrays.keys()
    assert all(mx.array_equal(loaded[name], arrays[name]) for name in arrays)
    try:
        mx.load(str(Path(directory) / "absent.safetensors"))
    except RuntimeError as error:
        assert str(error).startswith("[load_safetensors] Failed to open file"), error
    else:
        raise AssertionError("absent.safetensors was loaded")
    # An array is writable memory for numpy; the file must not change by it.
    before = Path(path).read_bytes()
    view = np.array(loaded["w"], copy=False)
    if view.flags.writeable:
        view[:] = 0
    assert Path(path).read_bytes() == before


def role_save_big(mx, path):
    mx.random.seed(1)
    arrays = {f"layers.{n}.weight": mx.random.normal((1024, 1024)) for n in range(24)}
    arrays |= {f"layers.{n}.scales": mx.random.normal((1024, 17)).astype(mx.float16) for n in range(24)}
    arrays["odd"] = mx.arange(3).astype(mx.uint8)
    mx.eval(arrays)
    for note in range(8):  # of MLX's header lengths, one that aligns nothing of 4 bytes
        mx.save_safetensors(path, arrays, metadata={"note": "x" * note})
        if struct.unpack("<Q", Path(path).read_bytes()[:8])[0] % 4 == 2:
            break


def role_load_big(mx, path):
    """Loads and touches everything; prints the growth of anonymous memory in KiB and a sum over the bytes."""
    import numpy as np

    def anonymous():
        with open("/proc/self/smaps_rollup") as rollup:
            return next(int(line.split()[1]) for line in rollup if line.startswith("Anonymous:"))

    def total(array):
        return int(np.array(array.view(mx.uint8), copy=False).sum(dtype=np.uint64))

    total(mx.load(str(Path(path).parent / "path.safetensors"))["w"])  # threads and code that are there once
    before = anonymous()
    loaded = mx.load(path)
    mx.eval(loaded)
    check = sum(total(array) for array in loaded.values())
    print(json.dumps({"anonymous_kib": anonymous() - before, "sum": check}))


# The test.


def check(holds, *what):
    if not holds:
        raise SystemExit(f"check failed: {' '.join(map(str, what))}")


def run(role, *arguments, preload=None, **variables):
    """Runs a role and returns what it printed on stdout and stderr."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SAFEALIGN_MLX_")}
    environment |= {key: str(value) for key, value in variables.items()}
    if preload is not None:
        environment |= {"LD_PRELOAD": str(preload), "SAFEALIGN_MLX_VERBOSE": variables.get("SAFEALIGN_MLX_VERBOSE", "1")}
    done = subprocess.run(
        [sys.executable, __file__, "role", role, *map(str, arguments)], env=environment, capture_output=True, text=True
    )
    check(done.returncode == 0, role, arguments, "ended with", done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def library(interposer, other, readelf):
    """Loaded before MLX is, it may need nothing of MLX's at once, and takes the place of nothing else."""
    symbols = subprocess.run([readelf, "--dyn-syms", "-W", interposer], check=True, capture_output=True, text=True).stdout
    exported = [
        line.split()[7] for line in symbols.splitlines()
        if len(line.split()) == 8 and line.split()[6] not in ("UND", "Ndx") and line.split()[4] in ("GLOBAL", "WEAK")
    ]
    save = [name for name in exported if name.startswith("_ZN3mlx4core16save_safetensors")]
    load = [name for name in exported if name.startswith("_ZN3mlx4core16load_safetensorsERKNSt7__cxx1112basic_string")]
    check(len(save) == 2 and len(load) == 3 and len(exported) == 5, "exported:", exported)

    relocations = subprocess.run([readelf, "-rW", interposer], check=True, capture_output=True, text=True).stdout
    at_once = re.findall(r"^\S+\s+\S+\s+(R_\S+)\s+\S+\s+(\S*mlx\S*)", relocations, re.MULTILINE)
    lazy = [name for kind, name in at_once if kind.endswith("JUMP_SLOT") or kind.endswith("JUMP_SLO")]
    check(lazy, "no function of MLX's is bound lazily: is the pattern right?")
    rest = [name for kind, name in at_once if "JUMP_SLO" not in kind and name not in exported]
    check(not rest, "needed as soon as it is loaded:", rest)

    # Programs without MLX do not notice.
    for command in (["/bin/true"], ["sh", "-c", "true"], [sys.executable, "-c", "import json"]):
        for preload in filter(None, (interposer, other)):
            done = subprocess.run(command, env={**os.environ, "LD_PRELOAD": preload}, capture_output=True, text=True)
            check((done.returncode, done.stdout, done.stderr) == (0, "", ""), command, done)


def same_outputs(interposer, directory):
    run("outputs", directory, "stock", "stock")
    _, said = run("outputs", directory, "ours", "ours", preload=interposer)
    check(said.count("safealign: saving") == 2 and said.count("safealign: loaded") == 2, "it was not called:", said)
    run("outputs", directory, "stock", "ours")
    run("outputs", directory, "ours", "stock", preload=interposer)
    expected = (directory / "out-stock-from-stock").read_bytes()
    check(len(expected) > 1000, "no outputs")
    for name in ("ours-from-ours", "stock-from-ours", "ours-from-stock"):
        check((directory / f"out-{name}").read_bytes() == expected, f"out-{name} is not what stock MLX computes")
    for kind in ("layer", "model"):
        check(not misaligned(directory / f"{kind}-ours.safetensors"), kind, "misaligned")


def switches(interposer, other, directory):
    path = directory / "values.safetensors"
    run("values", directory)
    stock = path.read_bytes()
    _, said = run("values", directory, preload=interposer)
    ours = path.read_bytes()
    check("saving" in said and "loaded" in said and ours != stock, said)

    def half(save, load, *, preload=interposer, **variables):
        _, said = run("values", directory, preload=preload, **variables)
        check(("saving" in said, "loaded" in said) == (save, load), variables, said)
        check(path.read_bytes() == (ours if save else stock), variables, "what was saved")
        return said

    half(False, True, SAFEALIGN_MLX_SAVE=0)
    half(True, False, SAFEALIGN_MLX_LOAD=0)
    check(half(False, False, SAFEALIGN_MLX_SAVE=0, SAFEALIGN_MLX_LOAD=0) == "", "it speaks")
    _, said = run("values", directory, preload=interposer, SAFEALIGN_MLX_VERBOSE="0")
    check(said == "", "it speaks unasked:", said)

    # Built for another version of MLX: said once, and MLX does everything itself.
    if other == "":
        print("no interposer for another version was given")
        return
    said = half(False, False, preload=other)
    check(re.fullmatch(r"safealign: built for MLX \S+, but this is MLX \S+: using MLX's own functions\n", said), said)


def memory(interposer, directory):
    stock, ours = directory / "stock.safetensors", directory / "big.safetensors"
    run("save_big", stock)
    run("save_big", ours, preload=interposer)
    size = ours.stat().st_size
    check(size >= 64 * MIB, size)
    check(not misaligned(ours), "misaligned:", misaligned(ours))
    check(misaligned(stock), "the control has no misaligned tensor")

    results = {}
    for name, path, preload in (
        ("stock file, stock load", stock, None),
        ("stock file, interposed", stock, interposer),
        ("our file, stock load", ours, None),
        ("our file, interposed", ours, interposer),
    ):
        results[name] = json.loads(run("load_big", path, preload=preload)[0])
        print(f"{name:24}{results[name]['anonymous_kib'] / 1024:8.1f} MiB anonymous of {size / MIB:.1f}")
    check(len({result["sum"] for result in results.values()}) == 1, results)
    check(results["our file, interposed"]["anonymous_kib"] < 8 * 1024, "copied:", results)
    # The controls: without safealign's load, or without its save, the memory is there.
    for name in ("stock file, stock load", "stock file, interposed", "our file, stock load"):
        check(results[name]["anonymous_kib"] > 64 * 1024, name, results)


def main():
    interposer, other, directory, readelf = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    library(interposer, other, readelf)
    same_outputs(interposer, directory)
    switches(interposer, other, directory)
    _, said = run("objects", directory, preload=interposer)
    check(said.count("saving") == 8 and not misaligned(directory / "path.safetensors"), said)
    memory(interposer, directory)
    shutil.rmtree(directory)


if __name__ == "__main__":
    if sys.argv[1] == "role":
        import mlx.core

        mlx.core.set_default_device(mlx.core.cpu)
        globals()[f"role_{sys.argv[2]}"](mlx.core, *sys.argv[3:])
    else:
        main()
