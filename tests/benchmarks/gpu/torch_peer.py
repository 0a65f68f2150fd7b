#!/usr/bin/env python3
"""Measures a training step of a torchvision model in PyTorch with the usual
optimisations: channels-last, autocast, cuDNN's benchmark, fused SGD, synthetic
images on the device. Prints one JSON line.

    torch_peer.py --variant graph --dtype fp16 -b 256

Variants are eager, graph (forward, backward and update as one CUDA graph),
compile, compile-graph (torch.compile's step as one CUDA graph) and max-autotune.
--limits instead measures the device's maximum speed of copies and matmuls.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": None}
LOSS_SCALE = 128.0


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--variant", default="eager", choices=[
        "eager", "graph", "compile", "compile-graph", "max-autotune"])
    parser.add_argument("--dtype", default="fp16", choices=list(AUTOCAST))
    parser.add_argument("--arch", default="resnet50")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("-b", "--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--warmup", type=int, default=15)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--limits", action="store_true")
    return parser.parse_args()


class Clock:
    """Measures time with the device's clock, or the host's without a GPU."""

    def __init__(self, device):
        self.on_gpu = device == "cuda"
        self.marks = []

    def mark(self):
        if self.on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        else:
            event = time.perf_counter()
        self.marks.append(event)

    def milliseconds(self):
        """Returns the times between successive marks."""
        pairs = list(zip(self.marks, self.marks[1:]))
        if not self.on_gpu:
            return [1e3 * (end - begin) for begin, end in pairs]
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in pairs]


class Training:
    """A training step on images that stay on the device."""

    def __init__(self, args):
        import torchvision
        torch.manual_seed(0)
        self.device, self.dtype = args.device, AUTOCAST[args.dtype]
        model = getattr(torchvision.models, args.arch)(num_classes=args.classes)
        model = model.to(args.device, memory_format=torch.channels_last).train()
        self.optimizer = torch.optim.SGD(
            model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4,
            fused=args.device == "cuda")
        shape = (args.batch_size, 3, args.image_size, args.image_size)
        self.images = torch.randn(shape, device=args.device).contiguous(
            memory_format=torch.channels_last)
        self.labels = torch.randint(args.classes, shape[:1], device=args.device)
        # A fused optimizer takes the scale on the device: nothing waits. The
        # scale does not grow.
        self.scaler = torch.amp.GradScaler(
            args.device, init_scale=LOSS_SCALE, growth_interval=1 << 30,
            enabled=args.dtype == "fp16")
        if args.variant.startswith("compile"):
            model = torch.compile(model)
        elif args.variant == "max-autotune":
            model = torch.compile(model, mode="max-autotune")
        self.model = model

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, dtype=self.dtype or torch.bfloat16,
                            enabled=self.dtype is not None):
            logits = self.model(self.images)
            loss = F.cross_entropy(logits, self.labels, label_smoothing=0.1)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def captured(self, stream):
        """Captures the step as a CUDA graph after steps on the same stream."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            loss = self.step()

        def replay():
            graph.replay()
            return loss

        return replay


def measure(args, stream=None):
    training = Training(args)
    begin = time.perf_counter()
    for _ in range(3):
        loss = training.step()
    loss.item()
    first = time.perf_counter() - begin
    step = (training.captured(stream) if args.variant.endswith("graph")
            else training.step)
    for _ in range(args.warmup):
        step()
    clock = Clock(args.device)
    clock.mark()
    for _ in range(args.iterations):
        loss = step()
        clock.mark()
    times = clock.milliseconds()
    mean = statistics.mean(times)
    report = {"images_per_second": 1e3 * args.batch_size / mean,
              "step_ms": {"median": statistics.median(times), "mean": mean,
                          "min": min(times), "max": max(times)},
              "first_steps_seconds": first, "loss": loss.item()}
    if args.device == "cuda":
        report["peak_bytes"] = torch.cuda.max_memory_allocated()
    return report


def mean_ms(args, work, rounds):
    for _ in range(3):
        work()
    clock = Clock(args.device)
    clock.mark()
    for _ in range(rounds):
        work()
    clock.mark()
    return clock.milliseconds()[0] / rounds


def limits(args):
    """Returns {copy_tb_per_s: bytes read and written, matmul_tflops:
    {dtype: ..}}, measured on random numbers."""
    small = args.device == "cpu"
    source = torch.randn(1 << (22 if small else 30), device=args.device)
    target = torch.empty_like(source)
    ms = mean_ms(args, lambda: target.copy_(source), 10)
    copied = 2 * source.numel() * source.element_size()
    report = {"copy_tb_per_s": copied / ms * 1e-9, "matmul_tflops": {}}
    size = 256 if small else 8192
    for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16),
                        ("fp32", torch.float32)):
        a, b = (torch.randn(size, size, device=args.device).to(dtype)
                for _ in range(2))
        ms = mean_ms(args, lambda a=a, b=b: a @ b, 10)
        report["matmul_tflops"][name] = 2 * size**3 / ms * 1e-9
    return report


def main():
    args = parse_arguments()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = True
    versions = {"torch": torch.__version__}
    if args.device == "cuda":
        versions.update(cuda=torch.version.cuda,
                        cudnn=torch.backends.cudnn.version(),
                        device=torch.cuda.get_device_name())
    if args.limits:
        report = limits(args)
    elif args.device == "cuda":
        # A stream of its own is what a capture needs, and costs nothing.
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            report = measure(args, stream)
    else:
        report = measure(args)
    print(json.dumps({**report, **vars(args), "versions": versions}))


if __name__ == "__main__":
    main()
