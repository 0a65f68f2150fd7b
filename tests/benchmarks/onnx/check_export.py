#!/usr/bin/env python3
"""Checks exports in ONNX's format with ONNX's checker and onnxruntime.

    python check_export.py --fusor build/bin/fusor

Exports the archives of tests/golden/torch_export, whose logits PyTorch
computed in fp64, and a ResNet after one training step. Each model must pass
onnx.checker with shape inference. onnx.reference and onnxruntime must compute
the stored logits, or those that `fusor exec` computes from the same file, for
two batch sizes.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import safetensors.numpy

EXPORTS = pathlib.Path(__file__).parents[2] / "golden/torch_export"
TOLERANCE = 1e-5  # relative to the largest logit


def differs(actual, expected):
    scale = np.abs(expected).max()
    return actual.shape != expected.shape or not np.allclose(
        actual, expected, rtol=0, atol=TOLERANCE * scale)


def check(path, images, expected):
    """Returns what is wrong with the model, or ""."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    logits = onnx.reference.ReferenceEvaluator(model).run(
        ["logits"], {"images": images})[0]
    if differs(logits, expected):
        return "onnx.reference computes others"
    session = onnxruntime.InferenceSession(
        path, providers=["CPUExecutionProvider"])
    if differs(session.run(["logits"], {"images": images})[0], expected):
        return "onnxruntime computes others"
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fusor", type=pathlib.Path, required=True)
    args = parser.parse_args()
    failed = []

    def fusor(*arguments):
        subprocess.run([args.fusor, *arguments], check=True,
                       capture_output=True)

    def report(name, problem):
        print(f"{name}: {problem or 'right'}")
        if problem:
            failed.append(name)

    with tempfile.TemporaryDirectory() as top:
        folder = pathlib.Path(top)
        path = folder / "model.onnx"
        for archive in sorted(EXPORTS.glob("*.pt2")):
            fusor("export", "-a", archive, "-o", path)
            stored = safetensors.numpy.load_file(
                archive.with_suffix(".safetensors"))
            for count in (len(stored["images"]), 1):
                report(f"{archive.name}, batch {count}",
                       check(path, stored["images"][:count],
                             stored["logits"][:count]))
        for arch, size in ("resnet20-cifar", 32), ("resnet18", 64):
            network = ("-a", arch, "--image-size", str(size), "--num-classes",
                       "10")
            fusor("train", "--synthetic", *network, "-b", "4", "--iterations",
                  "1", "--workspace", folder / arch)
            fusor("export", *network, "--weights",
                  folder / arch / "model.safetensors", "-o", path)
            for count in 3, 1:
                images = np.random.default_rng(0).standard_normal(
                    (count, 3, size, size)).astype(np.float32)
                safetensors.numpy.save_file({"images": images}, folder / "in")
                fusor("exec", path, "--inputs", folder / "in", "--outputs",
                      folder / "out", "--interpret")
                expected = safetensors.numpy.load_file(folder / "out")["logits"]
                report(f"{arch}, batch {count}", check(path, images, expected))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
