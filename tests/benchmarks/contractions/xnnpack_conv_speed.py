#!/usr/bin/env python3
"""Adds the forward convolutions of XNNPACK in f32 to a table of conv_speed.

    build/bin/conv_speed --kernel 3 --batch 8 > table.md
    python3 tests/benchmarks/contractions/xnnpack_conv_speed.py table.md --batch 8

Needs Debian's libxnnpack0. XNNPACK has channels last and no gradients.
"""

import argparse
import ctypes
import math
import pathlib
import random
import statistics
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent))

import torch_conv_speed  # pylint: disable=wrong-import-position

# Values of xnnpack.h.
SUCCESS = 0
DEPTHWISE = 1  # filters have the form [height, width, 1, channels]


def check(status, what):
    if status != SUCCESS:
        raise RuntimeError(f"XNNPACK: {what}: status {status}")


def values(count):
    """Returns floats in [-1, 1). A few repeat, because random() is slow."""
    some = [random.uniform(-1, 1) for _ in range(1009)]
    return (ctypes.c_float * count)(*(some * math.ceil(count / 1009))[:count])


def measurer(args):
    """Returns a function for torch_conv_speed.add_column."""
    xnnpack = ctypes.CDLL("libXNNPACK.so.0")
    threads = ctypes.CDLL("libpthreadpool.so.0")
    threads.pthreadpool_create.restype = ctypes.c_void_p
    pool = ctypes.c_void_p(
        threads.pthreadpool_create(ctypes.c_size_t(args.threads)))
    check(xnnpack.xnn_initialize(None), "initialize")
    size_t = ctypes.c_size_t

    def measure(shape, _):
        groups, channels, filters, kernel, size = shape
        depthwise = channels == filters == 1
        weight = values(groups * channels * filters * kernel**2)
        pixels = args.batch * size**2
        # XNNPACK may read a few bytes beyond the input.
        x = values(pixels * groups * channels + 64)
        y = (ctypes.c_float * (pixels * groups * filters))()
        operator = ctypes.c_void_p()
        check(xnnpack.xnn_create_convolution2d_nhwc_f32(
            *[kernel // 2] * 4, kernel, kernel, 1, 1, 1, 1, groups,
            size_t(channels), size_t(filters), size_t(groups * channels),
            size_t(groups * filters), weight, None,
            ctypes.c_float(-math.inf), ctypes.c_float(math.inf),
            DEPTHWISE if depthwise else 0, ctypes.byref(operator)),
              "create_convolution2d_nhwc_f32")
        check(xnnpack.xnn_setup_convolution2d_nhwc_f32(
            operator, size_t(args.batch), size_t(size), size_t(size), x, y,
            pool), "setup_convolution2d_nhwc_f32")
        took = []
        for _ in range(args.rounds + 1):  # the first one warms up
            start = time.perf_counter()
            check(xnnpack.xnn_run_operator(operator, pool), "run_operator")
            took.append(1e3 * (time.perf_counter() - start))
        xnnpack.xnn_delete_operator(operator)
        return {"forward": ("xnnpack", statistics.median(took[1:]))}

    return measure


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("table", type=pathlib.Path, help="output of conv_speed")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch_conv_speed.add_column(args, "XNNPACK", measurer(args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
