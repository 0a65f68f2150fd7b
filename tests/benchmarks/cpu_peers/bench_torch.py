#!/usr/bin/env python3
"""Measures the step time of a torchvision model on the CPU: forward, backward
and SGD with momentum on synthetic data. Prints one JSON line; with --on-demand,
one for each line of its input.

    python bench_torch.py --arch resnet50 --batch-size 16 --tuned

--tuned restarts the script under jemalloc with huge pages, which does not
return memory to the kernel. That has the largest effect at large batches:
glibc maps and zeroes every large activation anew in each step.
"""

import argparse
import ctypes.util
import json
import os
import resource
import statistics
import sys
import time

JEMALLOC_OPTIONS = ("dirty_decay_ms:-1,muzzy_decay_ms:-1,thp:always,"
                    "metadata_thp:auto")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arch", default="resnet50",
                        help="name of a torchvision classification model")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--layout", default="channels_last",
                        choices=["nchw", "channels_last"])
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--no-dropout", action="store_true",
                        help="turn off dropout and stochastic depth")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--on-demand", action="store_true",
                        help="measure the iterations for each line of the input")
    return parser.parse_args()


def enter_tuned_environment(threads):
    """Restarts the process under jemalloc, unless it already runs under it."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        if "jemalloc" in maps.read():
            return
    library = ctypes.util.find_library("jemalloc")
    if library is None:
        sys.exit("bench_torch: --tuned needs libjemalloc2")
    if "jemalloc" in os.environ.get("LD_PRELOAD", ""):
        sys.exit("bench_torch: LD_PRELOAD of jemalloc had no effect")
    environment = dict(os.environ, LD_PRELOAD=library,
                       MALLOC_CONF=JEMALLOC_OPTIONS,
                       OMP_NUM_THREADS=str(threads))
    os.execve(sys.executable, [sys.executable] + sys.argv, environment)


def disable_dropout(model):
    """Sets the rates of dropout and stochastic depth to 0."""
    import torch
    import torchvision
    for module in model.modules():
        if isinstance(module, (torch.nn.Dropout,
                               torchvision.ops.StochasticDepth)):
            module.p = 0.0
        if isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0


def make_step(args):
    """Returns a function that runs a training step and returns the loss."""
    import torch
    import torch.nn.functional as F
    import torchvision

    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    # These two would take a minute to draw their initial weights.
    quick = ({"init_weights": False}
             if args.arch in ("googlenet", "inception_v3") else {})
    model = torchvision.models.get_model(args.arch, num_classes=1000,
                                         **quick).train()
    if args.no_dropout:
        disable_dropout(model)
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size)
    labels = torch.randint(0, 1000, (args.batch_size,))
    if args.layout == "channels_last":
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9,
                                weight_decay=1e-4)
    forward = torch.compile(model) if args.compile else model

    def step():
        with torch.autocast("cpu", torch.bfloat16, args.dtype == "bf16"):
            outputs = forward(images)
        # GoogLeNet and Inception have auxiliary outputs.
        logits, *auxiliary = ((outputs,) if torch.is_tensor(outputs)
                              else outputs)
        loss = F.cross_entropy(logits.float(), labels)
        for side in auxiliary:
            if side is not None:
                loss = loss + 0.3 * F.cross_entropy(side.float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, {"torch": torch.__version__,
                  "torchvision": torchvision.__version__}


def measure(step, args):
    """Returns the times of the iterations, and what else is known after them."""
    times = []
    for _ in range(args.iterations):
        begin = time.perf_counter()
        loss = step()
        times.append(1e3 * (time.perf_counter() - begin))
    median = statistics.median(times)
    return {
        "images_per_second": 1e3 * args.batch_size / median,
        "step_ms": {"median": median, "min": min(times), "max": max(times)},
        "peak_rss_bytes":
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "loss": loss}


def main():
    args = parse_arguments()
    if args.tuned:
        enter_tuned_environment(args.threads)
    step, versions = make_step(args)
    begin = time.perf_counter()
    step()
    first = time.perf_counter() - begin
    for _ in range(args.warmup):
        step()
    for _ in sys.stdin if args.on_demand else [None]:
        print(json.dumps({
            "program": "torch", **vars(args), **measure(step, args),
            "first_step_seconds": first, "versions": versions}), flush=True)


if __name__ == "__main__":
    main()
