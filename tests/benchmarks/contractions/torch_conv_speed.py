#!/usr/bin/env python3
"""Adds the convolutions of PyTorch's oneDNN 3 to a table of conv_speed.

    build/bin/conv_speed --batch 16 > table.md
    torch-venv/bin/python tests/benchmarks/contractions/torch_conv_speed.py \\
        table.md --batch 16

Runs each shape in PyTorch, contiguous and with channels last, in a process in
which oneDNN reports how long its primitives take. Shows the faster of the two,
without copies to other layouts, in GFLOP/s. Needs libjemalloc2: with glibc's
allocator, each result would be mapped anew while the primitive writes it.
"""

import argparse
import collections
import os
import pathlib
import re
import statistics
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "cpu_peers"))

import bench_torch  # pylint: disable=wrong-import-position

ROW = re.compile(r"\| (\d+)x (\d+)x(\d+), (\d+)x\d+ of (\d+)x\d+ \| (\w+) \|")
DIRECTIONS = {"forward_training": "forward", "backward_data": "data",
              "backward_weights": "weight"}
LAYOUTS = ["contiguous_format", "channels_last"]


def run_shape(shape, args):
    """Prints oneDNN's reports of one shape."""
    bench_torch.enter_tuned_environment(args.threads)
    import torch  # pylint: disable=import-outside-toplevel
    groups, channels, filters, kernel, size = shape
    torch.set_num_threads(args.threads)
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    for layout in LAYOUTS:
        conv = torch.nn.Conv2d(groups * channels, groups * filters, kernel,
                               padding=kernel // 2, groups=groups, bias=False)
        x = torch.randn(args.batch, groups * channels, size, size)
        form = getattr(torch, layout)
        conv = conv.to(dtype=dtype, memory_format=form)
        x = x.to(dtype=dtype, memory_format=form).requires_grad_()
        for _ in range(args.rounds + 1):
            y = conv(x)
            y.backward(torch.ones_like(y))


def reported(text):
    """Returns {direction: {(implementation, layouts): [milliseconds]}}."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in text.splitlines():
        words = line.split(",")
        if not line.startswith("onednn_verbose") or "exec" not in words:
            continue
        if "convolution" not in words:
            continue
        at = words.index("convolution")
        direction = DIRECTIONS.get(words[at + 2])
        if direction:
            found[direction][words[at + 1], words[at + 3]].append(
                float(words[-1]))
    return found


def measure(shape, args):
    """Returns {direction: (implementation, milliseconds)}."""
    done = subprocess.run(
        [sys.executable, __file__, "--shape", *map(str, shape), "--batch",
         str(args.batch), "--rounds", str(args.rounds), "--threads",
         str(args.threads), *(["--bf16"] if args.bf16 else [])],
        env={**os.environ, "ONEDNN_VERBOSE": "profile_exec"},
        capture_output=True, text=True, check=True)
    best = {}
    for direction, variants in reported(done.stdout).items():
        times = {name: statistics.median(ms[1:] or ms)
                 for (name, _), ms in variants.items()}
        name = min(times, key=times.get)
        best[direction] = name, times[name]
    return best


def add_column(args, title, measure_shape):
    """Prints the table with one more column: GFLOP/s of the shapes' directions
    by measure_shape(shape, args), {direction: (implementation, milliseconds)}."""
    best, last = {}, None
    for line in args.table.read_text().splitlines():
        row = ROW.match(line)
        if row is None:
            print(line + (f" {title} |" if "direction" in line else "---|"))
            continue
        shape = [int(row[i]) for i in range(1, 6)]
        if shape != last:
            best, last = measure_shape(shape, args), shape
        groups, channels, filters, kernel, size = shape
        gflop = (2e-9 * args.batch * groups * channels * filters * kernel**2
                 * size**2)
        name, ms = best.get(row[6], ("none", 0))
        rate = f"{name} {1e3 * gflop / ms:.0f}" if ms else name
        print(f"{line} {rate} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("table", type=pathlib.Path, nargs="?",
                        help="output of conv_speed")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--shape", type=int, nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.shape:
        return run_shape(args.shape, args)
    if args.table is None:
        parser.error("the following arguments are required: table")
    add_column(args, "oneDNN 3", measure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
