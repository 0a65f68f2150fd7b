#!/usr/bin/env python3
"""Compares the first training step of fusor and PyTorch, each with PyTorch in
fp64 on the same weights and images. Prints one JSON line. Exits with 1 if
fusor's errors are larger than PyTorch's errors permit.

    first_step.py --fusor build/bin/fusor --backend cpu --device cpu \\
        --arch resnet18 --dtype fp32 --folder scratch

The error of a tensor is |dg| / |g|. In a single step, it depends on whether
some ReLU input changes its sign. Therefore medians over seeds are compared,
with PyTorch's in its worse layout. All gradients together may have twice
PyTorch's error, each gradient and running statistic four times. fusor's
gradients are what a step with rate 1024, without momentum and decay, subtracts
from the weights.
"""

import argparse
import ctypes
import json
import pathlib
import shlex
import struct
import subprocess
import sys
import zlib

import torch
import torch.nn.functional as F
import torchvision

from judge import judge

RATE = 1024.0
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": None}
LOSS_SCALE = {"fp16": 128.0}
LAYOUTS = {"nchw": torch.contiguous_format,
           "channels_last": torch.channels_last}
NAMES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}


def raw(tensor):
    """Returns the bytes of a tensor on the host."""
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(),
                            tensor.numel() * tensor.element_size())


def write_png(path, pixels):
    """`pixels`: uint8 [height, width, 3]"""
    height, width, _ = pixels.shape

    def chunk(kind, body):
        return (struct.pack(">I", len(body)) + kind + body +
                struct.pack(">I", zlib.crc32(kind + body)))

    rows = b"".join(b"\0" + raw(row) for row in pixels)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" +
        chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
        chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_safetensors(path, tensors):
    header, blobs, end = {}, [], 0
    for name, tensor in tensors.items():
        blob = raw(tensor)
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [end, end + len(blob)]}
        blobs.append(blob)
        end += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def read_safetensors(path):
    """Returns {name: tensor} of the fp32 tensors."""
    blob = path.read_bytes()
    size, = struct.unpack_from("<Q", blob)
    tensors = {}
    for name, entry in json.loads(blob[8:8 + size]).items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors[name] = torch.frombuffer(
            bytearray(blob[begin:end]), dtype=torch.float32).view(entry["shape"])
    return tensors


class Case:
    """Weights and one batch of images. The batch is a whole epoch, so
    shuffling does not change it."""

    def __init__(self, args, seed):
        torch.manual_seed(seed)
        self.args = args
        size = args.image_size
        self.model = getattr(torchvision.models, args.arch)(
            num_classes=args.classes).train()
        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        self.pixels = torch.randint(256, (args.batch_size, size, size, 3),
                                    dtype=torch.uint8)
        self.labels = torch.arange(args.batch_size) % args.classes
        self.weights = {name: value.clone()
                        for name, value in self.model.state_dict().items()}

    def images(self, dtype):
        images = self.pixels.to(dtype).permute(0, 3, 1, 2)
        mean, std = (torch.tensor(values, dtype=dtype).view(1, 3, 1, 1)
                     for values in (MEAN, STD))
        return (images - mean) / std

    def torch_step(self, device, layout, dtype, autocast=None, scale=1.0):
        """Returns (loss, {tensor: gradient or new running statistic} in
        fp64)."""
        model = self.model
        model.load_state_dict(self.weights)
        model = model.to(device, dtype).to(memory_format=layout)
        model.zero_grad(set_to_none=True)
        images = self.images(torch.float64).to(device, dtype)
        with torch.autocast(device, dtype=autocast or torch.bfloat16,
                            enabled=autocast is not None):
            logits = model(images.contiguous(memory_format=layout))
        wide = logits if dtype == torch.float64 else logits.float()
        loss = F.cross_entropy(wide, self.labels.to(device))
        (loss * scale).backward()
        found = {name: p.grad.detach().cpu().double() / scale
                 for name, p in model.named_parameters()}
        found.update((name, value.detach().cpu().double().clone())
                     for name, value in model.named_buffers()
                     if value.is_floating_point())
        return loss.item(), found

    def fusor_step(self, folder):
        """Returns the same for fusor."""
        args = self.args
        data = folder / "data/train"
        for i, pixels in enumerate(self.pixels):
            place = data / f"class{int(self.labels[i]):04}"
            place.mkdir(parents=True, exist_ok=True)
            write_png(place / f"{i:04}.png", pixels)
        start = folder / "start.safetensors"
        write_safetensors(start, {n: v for n, v in self.weights.items()
                                  if v.is_floating_point()})
        command = [
            *shlex.split(args.fusor), "train", folder / "data", "--arch",
            args.arch, "-b", args.batch_size, "--image-size", args.image_size,
            "--train-transform", "exact", "--mean", *MEAN, "--std", *STD,
            "--pretrained-weights", start, "--iterations", 1, "--epochs", 1,
            "--lr", RATE, "--lr-schedule", "constant", "--mom", 0, "--wd", 0,
            "--dropout", 0, "--training-only", "--workspace", folder / "out",
            "--dtype", args.dtype, "--backend", args.backend, "--json",
            folder / "result.json"]
        if args.dtype in LOSS_SCALE:
            command += ["--static-loss-scale", LOSS_SCALE[args.dtype]]
        done = subprocess.run([str(word) for word in command],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = done.stderr.strip().splitlines()
            sys.exit(f"first_step: fusor train ended with {done.returncode}: "
                     f"{last[-1] if last else 'no output'}")
        after = read_safetensors(folder / "out/model.safetensors")
        found = {}
        for name, value in self.weights.items():
            if not value.is_floating_point():
                continue
            new = after[name].double()
            found[name] = (new if "running_" in name
                           else (value.double() - new) / RATE)
        report = json.loads((folder / "result.json").read_text())
        return report["losses"][0], found


def errors(found, exact):
    """Returns {"all": error of all gradients as one vector, tensor: error of
    each}."""
    out, wrong, whole = {}, 0.0, 0.0
    for name, right in exact.items():
        away = (found[name] - right).square().sum().item()
        size = right.square().sum().item()
        out[name] = (away / size) ** 0.5 if size > 0 else away ** 0.5
        if "running_" not in name:
            wrong, whole = wrong + away, whole + size
    out["all"] = (wrong / whole) ** 0.5
    return out


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fusor", required=True)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--dtype", default="fp32", choices=list(AUTOCAST))
    parser.add_argument("-b", "--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=pathlib.Path, required=True,
                        help="a folder to work in; must not exist")
    return parser.parse_args()


def main():
    args = parse_arguments()
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_tf32 = True
    fusor, torch_runs, losses = [], {name: [] for name in LAYOUTS}, []
    for seed in range(args.seeds):
        case = Case(args, seed)
        loss, exact = case.torch_step("cpu", torch.contiguous_format,
                                      torch.float64)
        row = {"exact": loss}
        for name, layout in LAYOUTS.items():
            row[name], found = case.torch_step(
                args.device, layout, torch.float32, AUTOCAST[args.dtype],
                LOSS_SCALE.get(args.dtype, 1.0))
            torch_runs[name].append(errors(found, exact))
        folder = args.folder / f"seed{seed}"
        folder.mkdir(parents=True)
        row["fusor"], found = case.fusor_step(folder)
        fusor.append(errors(found, exact))
        losses.append(row)
    report = {"losses": losses, "seeds": args.seeds, "dtype": args.dtype,
              "arch": args.arch, **judge(fusor, torch_runs)}
    print(json.dumps(report))
    return 1 if report["too_far"] else 0


if __name__ == "__main__":
    sys.exit(main())
