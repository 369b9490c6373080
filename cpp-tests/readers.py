"""Other readers open files written with default options, and read every byte.

The reference implementation and MLX read the files that write_samples made in the directory of the first argument. The
padded file is the exception that the documentation names: MLX reads it, the reference refuses it.
"""

import json
import struct
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import safetensors
from safetensors import safe_open

FOR_MLX = {"mlx.safetensors", "nothing.safetensors", "padded.safetensors", "packed.safetensors"}
NUMPY_DTYPES = {"BOOL", "U8", "I8", "I16", "U16", "F16", "I32", "U32", "F32", "I64", "U64", "F64", "C64"}
WIDTHS = {"16": 2, "32": 4, "64": 8}

checks = 0


def check(holds, *what):
    global checks
    checks += 1
    if not holds:
        raise SystemExit(f"check failed: {' '.join(map(str, what))}")


def offsets(path):
    """Each tensor's dtype and absolute span, by an independent parser."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    return {
        name: (entry["dtype"], *(8 + length + at for at in entry["data_offsets"])) for name, entry in header.items()
    }


def misaligned(path):
    return [
        name
        for name, (dtype, begin, end) in offsets(path).items()
        if end > begin and begin % WIDTHS.get(dtype[-2:], 1) != 0
    ]


def check_reference(path, tensors):
    found = dict(safetensors.deserialize(path.read_bytes()))
    check(found.keys() == tensors.keys(), path.name, "reference: names")
    for name, expected in tensors.items():
        check(found[name]["dtype"] == expected["dtype"], path.name, name, "reference: dtype", found[name]["dtype"])
        check(list(found[name]["shape"]) == expected["shape"], path.name, name, "reference: shape")
        check(bytes(found[name]["data"]) == bytes.fromhex(expected["hex"]), path.name, name, "reference: bytes")


def check_mapped(path, tensors):
    """Through the mapped reader that Python programs use."""
    with safe_open(path, framework="numpy") as found:
        check(set(found.keys()) == tensors.keys(), path.name, "safe_open: names")
        for name, expected in tensors.items():
            if expected["dtype"] in NUMPY_DTYPES:
                array = found.get_tensor(name)
                check(list(array.shape) == expected["shape"], path.name, name, "safe_open: shape")
                check(array.tobytes() == bytes.fromhex(expected["hex"]), path.name, name, "safe_open: bytes")


def check_mlx(path, tensors):
    found = mx.load(str(path))
    check(found.keys() == tensors.keys(), path.name, "mlx: names")
    for name, expected in tensors.items():
        array = found[name]
        check(list(array.shape) == expected["shape"], path.name, name, "mlx: shape", array.shape)
        if array.dtype == mx.bfloat16:
            array = array.view(mx.uint16)
        check(np.array(array).tobytes() == bytes.fromhex(expected["hex"]), path.name, name, "mlx: bytes")


def main():
    mx.set_default_device(mx.cpu)
    directory = Path(sys.argv[1])
    files = json.loads((directory / "samples.json").read_text(encoding="utf-8"))
    for file, tensors in files.items():
        path = directory / file
        if file == "packed.safetensors":
            check(misaligned(path), "the control has no misaligned tensor")
        else:
            check(not misaligned(path), file, "misaligned:", misaligned(path))
        if file == "padded.safetensors":
            check(all(begin % 8 == 0 for _, begin, _ in offsets(path).values()), file, "not on 8 bytes")
            try:
                safetensors.deserialize(path.read_bytes())
                check(False, file, "the reference reads it: the documentation is wrong")
            except safetensors.SafetensorError as error:
                check("invalid offset" in str(error).lower(), file, "reference:", error)
        else:
            check_reference(path, tensors)
            check_mapped(path, tensors)
        if file in FOR_MLX:
            check_mlx(path, tensors)
    print(f"{checks} checks with safetensors {safetensors.__version__} and mlx {mx.__version__}")


main()
