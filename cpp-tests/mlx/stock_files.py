"""What stock MLX saves, the adapter loads: equal values, and as many copies as the header says there must be.

    stock_files.py ADAPTER DIRECTORY

ADAPTER is the program of adapter.cpp, DIRECTORY is emptied.
"""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np

DTYPES = {
    mx.bool_: ("BOOL", 1), mx.uint8: ("U8", 1), mx.int8: ("I8", 1), mx.uint16: ("U16", 2), mx.int16: ("I16", 2),
    mx.float16: ("F16", 2), mx.bfloat16: ("BF16", 2), mx.uint32: ("U32", 4), mx.int32: ("I32", 4),
    mx.float32: ("F32", 4), mx.uint64: ("U64", 8), mx.int64: ("I64", 8), mx.complex64: ("C64", 8),
}


def arrays():
    out = {"одно": mx.array(7, dtype=mx.int64), "odd": mx.arange(5).astype(mx.uint8)}
    for dtype, (name, _) in DTYPES.items():
        out[f"层.{name}"] = (mx.arange(21) % 5).astype(dtype).reshape(3, 7)
        out[f"{name}.T"] = mx.arange(12).astype(dtype).reshape(3, 4).T
    if tuple(map(int, mx.__version__.split(".")[:2])) >= (0, 32):  # before, MLX refused to save empty arrays
        out["empty"] = mx.zeros((0, 3))
    return out


def raw(array):
    plain = mx.contiguous(array)
    return np.array(plain.view(mx.uint16) if plain.dtype == mx.bfloat16 else plain).tobytes()


def counted(path):
    """Tensors in all, tensors to be copied and their bytes, by a parser of our own."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    widths = dict(DTYPES.values())
    spans = [(widths[entry["dtype"]], *entry["data_offsets"]) for entry in header.values()]
    copied = [end - begin for width, begin, end in spans if end > begin and (8 + length + begin) % width != 0]
    return len(spans), len(copied), sum(copied)


def check(holds, *what):
    if not holds:
        raise SystemExit(f"check failed: {' '.join(map(str, what))}")


def main():
    mx.set_default_device(mx.cpu)
    adapter, directory = sys.argv[1], Path(sys.argv[2])
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    saved = arrays()
    expected = {name: (DTYPES[array.dtype][0], list(array.shape), raw(array)) for name, array in saved.items()}
    copies = set()
    # Eight lengths of the header in a row: the data section starts on every remainder.
    for length in range(8):
        path = directory / f"stock-{length}.safetensors"
        metadata = {"note": "x" * length}
        mx.save_safetensors(str(path), saved, metadata=metadata)
        tensors, copied, bytes_copied = counted(path)
        dump = json.loads(subprocess.run([adapter, "dump", path], check=True, stdout=subprocess.PIPE).stdout)
        check(dump["metadata"] == metadata, path, "metadata", dump["metadata"])
        check(dump["tensors"].keys() == expected.keys(), path, "names")
        for name, (dtype, shape, data) in expected.items():
            found = dump["tensors"][name]
            check(found["dtype"] == dtype and found["shape"] == shape, path, name, found)
            check(bytes.fromhex(found["hex"]) == data, path, name, "bytes")
        check(dump["report"] == [tensors, tensors - copied, copied, bytes_copied], path, "report:", dump["report"],
              "by the header:", tensors, copied, bytes_copied)
        copies.add(copied)
    # Or the right count of copies would say nothing.
    check(len(copies) > 2 and max(copies) > len(DTYPES), "the files are too much alike:", copies)

    # Without metadata MLX writes null, or nothing.
    path = directory / "bare.safetensors"
    mx.save_safetensors(str(path), {"a": mx.arange(3)})
    dump = json.loads(subprocess.run([adapter, "dump", path], check=True, stdout=subprocess.PIPE).stdout)
    check(dump["metadata"] == {} and list(dump["tensors"]) == ["a"], path, dump)
    print(f"9 files of mlx {mx.__version__}; tensors copied: {sorted(copies)}")


main()
