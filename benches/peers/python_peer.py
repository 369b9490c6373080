#!/usr/bin/env python3
"""Runs Python's safetensors: reads one command per line, and prints nanoseconds, or KiB of anonymous memory."""

import os
import sys
import time

import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

# NumPy knows BF16 once ml_dtypes is there.
DTYPES = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "U32": np.uint32, "U8": np.uint8}


def anonymous_kib():
    with open("/proc/self/smaps_rollup") as rollup:
        return next(int(line.split()[1]) for line in rollup if line.startswith("Anonymous:"))


def model(recipe):
    arrays = {}
    with open(recipe) as lines:
        for line in lines:
            name, dtype, rows, columns = line.split()
            arrays[name] = np.ones((int(rows), int(columns)), DTYPES[dtype])
    return arrays


def touch(path):
    """Every tensor held, every page touched; the growth of anonymous memory in KiB."""
    before = anonymous_kib()
    with safe_open(path, framework="np") as file:
        held = [file.get_tensor(name) for name in file.keys()]
    total = sum(int(array.reshape(-1).view(np.uint8)[::4096].sum()) for array in held if array.size)
    grown = anonymous_kib() - before
    return grown if total >= 0 else 0


def main():
    arrays = {}
    for line in sys.stdin:
        command, _, path = line.strip().partition(" ")
        start = time.perf_counter_ns()
        if command == "quit":
            return
        if command == "model":
            arrays = model(path)
        elif command == "write":
            save_file(arrays, path)
        elif command == "open":
            with safe_open(path, framework="np") as file:
                file.keys()
        elif command == "rewrite":
            source, target = path.split(" ")
            save_file(load_file(source), target)
        elif command == "touch":
            print(touch(path), flush=True)
            continue
        elif command == "scan":
            for name in sorted(os.listdir(path)):
                with safe_open(os.path.join(path, name), framework="np") as file:
                    file.keys()
        else:
            sys.exit(f"unknown command {command}")
        print(time.perf_counter_ns() - start, flush=True)


if __name__ == "__main__":
    main()
