#!/usr/bin/env python3
"""Runs PyTorch's OpInfo samples through `fusor exec` and compares in fp64.

    python opinfo_suite.py --fusor build/bin/fusor --out OUT.json [OP ...]

Each sample of torch.testing's operator database is exported as a program with
one call. The program is run with gradients by the interpreter, and compiled
with and without fusion. The results are compared with PyTorch. Samples that
the import rejects, or that PyTorch cannot export, are skipped and counted by
reason.
"""

import argparse
import collections
import functools
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest.mock
import warnings

import safetensors.torch
import torch
from torch.testing._internal.common_methods_invocations import op_db

TOLERANCE = 1e-9
# PyTorch's kernel contains 1/6 as a float.
TOLERANCES = {"nn.functional.hardsigmoid": 1e-7}
WAYS = {"interpreter": ["--interpret"], "fused": [],
        "unfused": ["--fusion", "off"]}
GRAPH_ERROR = 3


def as_real(tensor):
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex()
            else tensor)


class Call(torch.nn.Module):
    """Calls an operator or module on a sample's tensors. Other arguments are
    constants. Complex arguments and results are given as real ones."""

    def __init__(self, op, args, kwargs):
        super().__init__()
        self.op = op
        self.values, self.spec = torch.utils._pytree.tree_flatten(
            (tuple(args), kwargs))
        self.places = [i for i, value in enumerate(self.values)
                       if torch.is_tensor(value)]
        self.complex = [self.values[i].is_complex() for i in self.places]
        self.tensors = [as_real(self.values[i]) for i in self.places]
        for i in self.places:
            self.values[i] = None

    def forward(self, *tensors):
        values = list(self.values)
        for place, tensor, paired in zip(self.places, tensors, self.complex):
            values[place] = torch.view_as_complex(tensor) if paired else tensor
        args, kwargs = torch.utils._pytree.tree_unflatten(values, self.spec)
        return torch.utils._pytree.tree_map_only(
            torch.Tensor, as_real, self.op(*args, **kwargs))


def reason_of(message):
    """Returns an error's line without the parts that differ between samples."""
    message = message.split(".pt2: ", 1)[-1]
    message = re.sub(r" at [^:]*:\d+", "", message)
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "N", message).strip()[:160]


def flat(results):
    if torch.is_tensor(results):
        return [results]
    return [value for value in torch.utils._pytree.tree_leaves(results)
            if torch.is_tensor(value)]


def expected_of(call):
    """Returns the results, and the gradients of the sum of the floating-point
    ones, by name."""
    inputs = [tensor.detach().clone() for tensor in call.tensors]
    leaves = [tensor.requires_grad_() for tensor in inputs
              if tensor.is_floating_point()]
    results = flat(call(*inputs))
    total = [result.sum() for result in results
             if result.is_floating_point() and result.requires_grad]
    if total and leaves:
        torch.autograd.backward(total)
    expected = {f"output{i}": result.detach()
                for i, result in enumerate(results)}
    gradients = [None if not tensor.is_floating_point() else
                 tensor.grad if tensor.grad is not None
                 else torch.zeros_like(tensor) for tensor in inputs]
    return expected, gradients, bool(total and leaves)


def is_random(call):
    """Returns whether the results depend on random numbers. The samples of
    some operators set the same seed before each call; they cannot here."""
    results = []
    for seed in range(4):
        torch.manual_seed(seed)
        with torch.no_grad(), unittest.mock.patch.object(torch, "manual_seed"):
            results.append(flat(call(*call.tensors)))
    return any(a.shape != b.shape or
               not torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
               for other in results[1:] for a, b in zip(results[0], other))


def same(actual, expected, tolerance):
    if expected.is_floating_point():  # the interpreter does not round
        tolerance = max(tolerance, torch.finfo(expected.dtype).eps)
    actual, expected = actual.double(), expected.double()
    if actual.shape != expected.shape:
        return False
    finite = expected[expected.isfinite()]
    scale = max(finite.abs().max().item() if finite.numel() else 0, 1e-3)
    return torch.allclose(actual, expected, rtol=0, atol=tolerance * scale,
                          equal_nan=True)


def run_sample(args, op, sample, folder, tolerance):
    """Returns "passed" or why the sample was skipped. Raises AssertionError
    for a failure."""
    call = Call(op, (sample.input, *sample.args), sample.kwargs)
    if any(tensor.numel() == 0 for tensor in call.tensors):
        return "a tensor without elements"
    try:
        program = torch.export.export(
            call, tuple(tensor.detach() for tensor in call.tensors))
        archive = folder / "call.pt2"
        torch.export.save(program, archive)
        if is_random(call):
            return "random numbers"
        expected, gradients, differentiable = expected_of(call)
    except Exception as error:  # PyTorch may raise anything
        return f"PyTorch: {type(error).__name__}"
    names = program.graph_signature.user_inputs
    source, out = folder / "in", folder / "out"
    safetensors.torch.save_file(
        {name: tensor.detach().contiguous().clone()
         for name, tensor in zip(names, call.tensors)}, source)
    for name, gradient in zip(names, gradients):
        if gradient is not None and differentiable:
            expected["grad/" + name] = gradient
    for way, flags in WAYS.items():
        done = subprocess.run(
            [args.fusor, "exec", archive, "--inputs", source, "--outputs", out,
             *(["--gradients"] if differentiable else []), *flags],
            check=False, capture_output=True, text=True)
        if done.returncode == GRAPH_ERROR:
            return reason_of(done.stderr)
        assert done.returncode == 0, f"{way}: {done.stderr.strip()}"
        results = safetensors.torch.load_file(out)
        for name, value in expected.items():
            assert name in results, f"{way}: no {name}"
            assert same(results[name], value, tolerance), f"{way}: {name} differs"
    return "passed"


def run_op(args, op, folder):
    if "empty" in op.name:
        return {"counts": {"not initialised": 1}, "failures": []}
    counts = collections.Counter()
    failures = []
    for number, sample in enumerate(op.sample_inputs("cpu", torch.float64)):
        if number == args.samples:
            break
        try:
            counts[run_sample(args, op.op, sample, folder,
                              TOLERANCES.get(op.name, TOLERANCE))] += 1
        except AssertionError as error:
            failures.append(f"sample {number}: {error}")
        if number == 2 and counts and all("unknown operator" in reason
                                          for reason in counts):
            break  # the other samples call the same operator
    return {"counts": counts, "failures": failures}


def arguments(description, kind, samples):
    """Parses the arguments of a suite of operators or modules."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--fusor", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--samples", type=int, default=samples,
                        help="at most so many samples of each (default: "
                        f"{samples})")
    parser.add_argument("names", nargs="*", metavar=kind)
    args = parser.parse_args()
    args.fusor = args.fusor.resolve()
    warnings.simplefilter("ignore")
    return args


def run_suite(args, runs):
    """Calls runs of {name: function of a folder} and writes their results.
    Exits with 1 if a sample failed."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, run in runs.items():
            results[name] = run(pathlib.Path(folder))
            args.out.write_text(json.dumps(results, indent=1) + "\n")
            print(name, dict(results[name]["counts"]),
                  *results[name]["failures"][:3], sep="; ", flush=True)
    passed = sum(row["counts"].get("passed", 0) for row in results.values())
    failed = sum(len(row["failures"]) for row in results.values())
    print(f"{passed} samples passed, {failed} failed")
    sys.exit(failed != 0)


def main():
    args = arguments(__doc__, "OP", samples=20)
    runs = {}
    for op in op_db:
        if args.names and op.name not in args.names:
            continue
        if torch.float64 not in op.dtypes or "dropout" in op.name:
            continue  # dropout is random
        name = op.name + ("." + op.variant_test_name
                          if op.variant_test_name else "")
        runs[name] = functools.partial(run_op, args, op)
    run_suite(args, runs)


if __name__ == "__main__":
    main()
