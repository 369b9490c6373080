#!/usr/bin/env python3
"""Draws the output of `cargo bench -- plot`: time against the number of tensors, and against bytes.

    plot.py LINES DIRECTORY
"""

import collections
import pathlib
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

COLOURS = {"safealign": "tab:red", "crate safetensors": "tab:green", "Python safetensors": "tab:orange", "MLX": "tab:blue"}
AXES = {"tensors": "tensors (64 MiB in all)", "bytes": "bytes (300 tensors)"}


def main():
    lines = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in pathlib.Path(sys.argv[1]).read_text().splitlines():
        axis, what, who, at, millis = line.split()
        lines[axis, what][who.replace("_", " ")].append((float(at), float(millis)))
    # The same bytes for the same figures: no date, no random ids.
    plt.rcParams["svg.hashsalt"] = "safealign"
    for axis, label in AXES.items():
        figure, plots = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True)
        for plot, what in zip(plots, ("write", "open")):
            for who, points in sorted(lines[axis, what].items()):
                points.sort()
                width = 2.5 if who == "safealign" else 1.2
                plot.plot(*zip(*points), marker="o", markersize=3, linewidth=width, label=who, color=COLOURS[who])
            plot.set(xscale="log", yscale="log", xlabel=label, title=what)
            plot.grid(True, which="major", linewidth=0.4)
        plots[0].set_ylabel("milliseconds, median")
        plots[1].legend()
        figure.tight_layout()
        figure.savefig(pathlib.Path(sys.argv[2]) / f"performance-{axis}.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
