#!/usr/bin/env python3
"""Writes a model with unmodified MLX: 4-bit quantised layers, norms and scales, in F16, BF16, U32 and F32.

    make_model.py OUT.safetensors [--tensors 2999] [--mib 1024]

MLX does not pad its JSON header, so its length determines whether the tensors are aligned. The script makes a note in
the metadata longer until the length is an odd multiple of 2. Then F16 and BF16 tensors are aligned, and U32 and F32
tensors are not.
"""

import argparse
import os
import struct

import mlx.core as mx


def tensors(count, mib):
    """Names, shapes and dtypes; the big ones share what the small ones leave of the size."""
    layer = [
        ("mlp.down_proj.weight", mx.uint32), ("mlp.down_proj.scales", mx.bfloat16),
        ("mlp.down_proj.biases", mx.bfloat16), ("self_attn.q_proj.weight", mx.uint32),
        ("self_attn.q_proj.scales", mx.float16), ("self_attn.q_proj.biases", mx.float16),
        ("input_layernorm.weight", mx.float32),
    ]
    names = [
        (f"model.layers.{number // len(layer)}.{layer[number % len(layer)][0]}", layer[number % len(layer)][1])
        for number in range(count)
    ]
    big = sum(name.endswith("_proj.weight") for name, _ in names)
    columns = 512
    rows = (mib << 20) // (big * columns * 4) + 1
    for name, dtype in names:
        if name.endswith("_proj.weight"):
            yield name, (rows, columns), dtype
        elif "layernorm" in name:
            yield name, (columns * 8,), dtype
        else:
            yield name, (rows, columns // 8), dtype


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--tensors", type=int, default=2999)
    parser.add_argument("--mib", type=int, default=1024)
    options = parser.parse_args()

    mx.random.seed(0)
    arrays = {}
    for name, shape, dtype in tensors(options.tensors, options.mib):
        if dtype == mx.uint32:
            arrays[name] = mx.random.randint(0, 2**31 - 1, shape).astype(dtype)
        else:
            arrays[name] = mx.random.normal(shape).astype(dtype)
    mx.eval(arrays)

    for note in range(8):
        mx.save_safetensors(options.out, arrays, metadata={"format": "mlx", "note": "x" * note})
        with open(options.out, "rb") as file:
            (header_len,) = struct.unpack("<Q", file.read(8))
        if header_len % 4 == 2:
            break
    print(f"{options.out}: {len(arrays)} tensors, {os.path.getsize(options.out)} bytes, header of {header_len}")


if __name__ == "__main__":
    main()
