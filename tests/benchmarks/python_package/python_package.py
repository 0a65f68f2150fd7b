#!/usr/bin/env python3
"""Measures the Python package: the overhead of a call, whether memory is
returned, import and wheel, and how well a PyTorch model and its step agree.

    build/venv/bin/pip wheel --no-deps -w build tools/python
    PYTHONPATH=build/python PYTHON python_package.py [--out FILE.md]

PYTHON is the version that the package was built for. The comparison with
PyTorch needs torch and torchvision and is skipped without them. --out writes
the results as a document.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import fusor
import numpy

ROOT = pathlib.Path(__file__).resolve().parents[3]
BATCH, SIZE, CLASSES = 8, 64, 1000
CYCLES, WARM_CYCLES = 200, 20


def batch(seed=0):
    random = numpy.random.default_rng(seed)
    return (random.integers(0, 256, (BATCH, SIZE, SIZE, 3), numpy.uint8),
            random.integers(0, CLASSES, BATCH))


def trivial_step():
    """Returns a step with the same arrays and nearly no computation. Its time
    is an upper bound for calls, conversions and copies."""
    b = fusor.Builder("trivial")
    images = b.input("images", [BATCH, SIZE, SIZE, 3], "u8")
    labels = b.input("labels", [BATCH], "i32")
    w = b.parameter("w", [BATCH])
    pixels = b.reshape(b.slice(images, [0] * 4, [BATCH, 1, 1, 1]), [BATCH])
    product = b.cast(pixels, "f32") * w * b.cast(labels, "f32")
    b.output(b.reduce_sum(product, [0]), "loss")
    return fusor.compile(b, optimizer=fusor.SGD(lr=0.0))


def seconds_per_call(step, images, labels, calls):
    start = time.perf_counter()
    for _ in range(calls):
        step(images, labels)
    return (time.perf_counter() - start) / calls


def measure_calls(rounds=7):
    """Returns medians in microseconds of alternating rounds, and the device."""
    images, labels = batch()
    trivial = trivial_step()
    resnet = fusor.compile("resnet18", (images, labels))
    for step in (trivial, resnet):
        seconds_per_call(step, images, labels, 3)
    calls, steps = [], []
    for _ in range(rounds):
        calls.append(seconds_per_call(trivial, images, labels, 1000))
        steps.append(seconds_per_call(resnet, images, labels, 5))
    return (1e6 * statistics.median(calls), 1e6 * statistics.median(steps),
            resnet.device)


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def measure_memory():
    """Returns resident bytes after some cycles of compiling and destroying,
    and after all of them."""
    images, labels = batch()
    sizes = []
    for cycle in range(CYCLES):
        step = fusor.compile("resnet20-cifar", num_classes=10, batch_size=8)
        step(images[:, :32, :32], labels % 10)
        del step
        if cycle + 1 in (WARM_CYCLES, CYCLES):
            sizes.append(resident_bytes())
    return sizes


def measure_import(runs=5):
    """Returns the least seconds of `import fusor` in a new process, of the
    processor and on the clock."""
    script = ("import time; a, b = time.process_time(), time.perf_counter(); "
              "import fusor; "
              "print(time.process_time() - a, time.perf_counter() - b)")
    times = [[float(t) for t in subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True,
        text=True).stdout.split()] for _ in range(runs)]
    return [min(column) for column in zip(*times)]


def wheel_bytes():
    """Returns the size of the newest wheel in build/; None without one."""
    wheels = sorted((ROOT / "build").glob("fusor-*.whl"),
                    key=lambda path: path.stat().st_mtime)
    return wheels[-1].stat().st_size if wheels else None


def compare_with_pytorch(torch, torchvision):
    """Returns rows of (model, PyTorch's first loss, fusor's first loss,
    largest difference of a weight). The weights are compared after one step of
    each, with fusor's state loaded into PyTorch."""
    rows = []
    for name in ("resnet18", "vgg11_bn", "mobilenet_v3_small", "densenet121"):
        torch.manual_seed(0)
        model = torchvision.models.get_model(name, num_classes=10).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0  # random numbers differ
        images = torch.randn(BATCH, 3, SIZE, SIZE)
        labels = torch.arange(BATCH) % 10
        step = fusor.compile(model, (images, labels), optimizer=fusor.SGD(
            lr=0.01, momentum=0.9))
        twin = torchvision.models.get_model(name, num_classes=10)
        twin.load_state_dict(step.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        own = step(images, labels)
        twin.load_state_dict(step.state_dict())
        difference = max(
            (value.double() - twin.state_dict()[key].double()).abs().max()
            for key, value in model.state_dict().items())
        rows.append((name, loss.item(), own, difference.item()))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    call, step, device = measure_calls()
    warm, end = measure_memory()
    processor, clock = measure_import()
    wheel = wheel_bytes()
    lines = [
        "# The Python package", "",
        "Written by `tests/benchmarks/python_package/python_package.py`, on "
        f"{device}.", "",
        "| | |", "|---|---|",
        f"| call with {BATCH} uint8 images of {SIZE} x {SIZE} and labels, of a "
        f"step that computes next to nothing | {call:.0f} us |",
        f"| step of resnet18 on them | {step / 1e3:.1f} ms |",
        f"| call / step | {100 * call / step:.2g} % |",
        f"| resident after {WARM_CYCLES} cycles of compile, step, destroy "
        f"(resnet20-cifar) | {warm / 2 ** 20:.1f} MiB |",
        f"| after {CYCLES} | {end / 2 ** 20:.1f} MiB "
        f"({100 * (end / warm - 1):+.1f} %) |",
        f"| `import fusor` | {1e3 * clock:.0f} ms, {1e3 * processor:.0f} ms "
        "of the processor |",
        "| wheel | "
        + ("not built" if wheel is None else f"{wheel / 1e6:.1f} MB") + " |"]
    try:
        import torch
        import torchvision
    except ImportError as missing:
        print(f"without PyTorch: {missing}")
    else:
        lines += [
            "", f"torchvision's models in PyTorch {torch.__version__}: one "
            f"step of each on {BATCH} images of {SIZE} x {SIZE}, SGD with "
            "momentum. *Weights*: greatest difference after that step, read "
            "back by load_state_dict.", "",
            "| model | loss in PyTorch | loss in fusor | difference | weights |",
            "|---|---|---|---|---|"]
        for name, theirs, own, weights in compare_with_pytorch(
                torch, torchvision):
            lines.append(f"| {name} | {theirs:.6f} | {own:.6f} | "
                         f"{abs(own - theirs):.1e} | {weights:.1e} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("FUSOR_CACHE_DIR", cache)
        main()
