#!/usr/bin/env python3
"""Writes the PyTorch values that the tests compare with.

    python make_torch_reference.py --out torch              everything
    python make_torch_reference.py --out torch --models resnet18
    python make_torch_reference.py --out torch --ops

README.md in this folder says what is stored and which versions were used.
"""

import argparse
import dataclasses
import json
import pathlib

import numpy as np
import safetensors.numpy
import torch
import torchvision

import philox
import reference_models
import reference_ops

SAMPLE_STEP, SIGN_STEP = 2, 3
SAMPLES, PROJECTIONS = 256, 8
SEEDS = range(5)
CURVE_STEPS = 20
LAYOUTS = {"nchw": torch.contiguous_format, "channels_last": torch.channels_last}
SIGN_CHUNK = 1 << 20


def norm_and_projections(values, seed, site):
    """Returns [1 + 8]: the L2 norm and +-1 projections of a flat fp64 array."""
    projections = np.zeros(PROJECTIONS)
    for begin in range(0, values.size, SIGN_CHUNK):
        chunk = values[begin:begin + SIGN_CHUNK]
        words = philox.bits(seed, SIGN_STEP, site, 0, begin // 16,
                            (chunk.size + 15) // 16)
        octets = words.astype("<u4").view(np.uint8)[:chunk.size, None]
        minus = np.unpackbits(octets, axis=1, bitorder="little")
        projections += chunk @ (1.0 - 2.0 * minus)
    return np.concatenate([[np.sqrt(np.dot(values, values))], projections])


def sample_indices(count, seed, site):
    if count <= SAMPLES:
        return np.arange(count)
    words = philox.bits(seed, SAMPLE_STEP, site, 0, 0, SAMPLES // 4)
    return ((words.astype(np.uint64) * np.uint64(count)) >> np.uint64(32)).astype(
        np.int64)


def fingerprint(tensor, seed, site):
    """Returns [1 + 8 + min(numel, 256)] fp64: norm, projections, samples."""
    values = tensor.detach().to(torch.float64).contiguous().view(-1).numpy()
    return np.concatenate([
        norm_and_projections(values, seed, site),
        values[sample_indices(values.size, seed, site)]])


class Run:
    """A training step. Its gradients and running statistics stay available."""

    def __init__(self, reference, shape, seed, dtype, layout):
        self.seed = seed
        model, images, labels = reference_models.prepare(
            reference, shape, seed, dtype, LAYOUTS[layout])
        self.loss = reference_models.train_step(model, images, labels)
        self.gradients = [(name, p.grad) for name, p in model.named_parameters()]
        self.running = reference_models.running_statistics(model)

    def fingerprints(self):
        named = [("grad/" + name, t) for name, t in self.gradients]
        named += [("running/" + name, t) for name, t in self.running]
        return {name: fingerprint(tensor, self.seed, site)
                for site, (name, tensor) in enumerate(named)}

    def gradient_summary(self):
        """Returns [gradients, 1 + 8]."""
        return np.stack([
            norm_and_projections(
                g.to(torch.float64).contiguous().view(-1).numpy(), self.seed, site)
            for site, (_, g) in enumerate(self.gradients)])

    def gradient_errors(self, exact):
        """Returns (|dg|/|g| of each gradient [gradients], of all together)."""
        squares = np.array([
            [(g.to(torch.float64) - e).square().sum().item(),
             e.square().sum().item()]
            for (_, g), (_, e) in zip(self.gradients, exact.gradients)])
        total = squares.sum(axis=0)
        return (np.sqrt(squares[:, 0] / squares[:, 1]),
                np.sqrt(total[0] / total[1]))


def sharp_values(reference, tensors, notes):
    exact = Run(reference, reference.sharp, 0, torch.float64, "nchw")
    stored = exact.fingerprints()
    other = Run(reference, reference.sharp, 0, torch.float64, "channels_last")
    per_tensor, total = other.gradient_errors(exact)
    notes["fp64_layouts_differ"] = {
        "worst_gradient": float(per_tensor.max()), "all_gradients": float(total),
        "loss": abs(other.loss - exact.loss) / exact.loss}
    del other
    errors = {name: [] for name in stored}
    loss_errors = []
    for layout in LAYOUTS:
        run = Run(reference, reference.sharp, 0, torch.float32, layout)
        loss_errors.append(run.loss - exact.loss)
        for name, value in run.fingerprints().items():
            errors[name].append(value - stored[name])
    tensors["loss"] = np.array([exact.loss])
    tensors["loss/fp32_error"] = np.array(loss_errors, dtype=np.float32)
    for name, value in stored.items():
        tensors[name] = value
        tensors[name + "/fp32_error"] = np.stack(errors[name]).astype(np.float32)


def blunt_values(reference, tensors):
    summaries, losses, each, together = [], [], [], []
    for seed in SEEDS:
        exact = Run(reference, reference.blunt, seed, torch.float64, "nchw")
        summaries.append(exact.gradient_summary())
        losses.append(exact.loss)
        rows = [Run(reference, reference.blunt, seed, torch.float32,
                    layout).gradient_errors(exact) for layout in LAYOUTS]
        each.append([row[0] for row in rows])
        together.append([row[1] for row in rows])
        print(f"  seed {seed}: |dg|/|g| nchw {rows[0][1]:.2e} "
              f"channels_last {rows[1][1]:.2e}", flush=True)
    tensors["blunt/summary"] = np.array(summaries)
    tensors["blunt/loss"] = np.array(losses)
    tensors["blunt/error_each"] = np.array(each)
    tensors["blunt/error_all"] = np.array(together)


def curve_values(reference, tensors, notes):
    losses = [np.array(reference_models.loss_curve(
        reference, 0, CURVE_STEPS, torch.float64, memory_format))
        for memory_format in LAYOUTS.values()]
    tensors["curve/loss"] = losses[0]
    notes["fp64_curves_differ"] = float(
        np.max(np.abs(losses[1] / losses[0] - 1)))


def versions():
    return {"torch": torch.__version__, "torchvision": torchvision.__version__,
            "numpy": np.__version__, "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability()}


def write(path, tensors, spec):
    spec = dict(spec, versions=versions())
    arrays = {name: np.ascontiguousarray(a) for name, a in tensors.items()}
    safetensors.numpy.save_file(arrays, path,
                                metadata={"spec": json.dumps(spec)})
    print(f"{path}: {path.stat().st_size} bytes", flush=True)


def make_model(name, folder):
    print(name, flush=True)
    reference = reference_models.MODELS[name]
    model = reference_models.build(reference)
    tensors, notes = {}, {}
    sharp_values(reference, tensors, notes)
    if reference.curve:
        curve_values(reference, tensors, notes)
    print(" ", json.dumps(notes), flush=True)
    blunt_values(reference, tensors)
    write(folder / f"{name}.safetensors", tensors, {
        "model": name, **dataclasses.asdict(reference), "notes": notes,
        "seeds": list(SEEDS), "layouts": list(LAYOUTS),
        "parameters": [[n, list(p.shape), role]
                       for n, p, role in reference_models.roles(model)],
        "running": [n for n, _ in reference_models.running_statistics(model)]})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--models", nargs="*", choices=reference_models.MODELS)
    parser.add_argument("--ops", action="store_true")
    args = parser.parse_args()
    everything = args.models is None and not args.ops
    torch.set_num_threads(2)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.ops or everything:
        tensors, cases = reference_ops.all_cases()
        write(args.out / "ops.safetensors", tensors, {"cases": cases})
    for name in reference_models.MODELS if everything else args.models or []:
        make_model(name, args.out)


if __name__ == "__main__":
    main()
