#!/usr/bin/env python3
"""Runs the samples of PyTorch's module database through `fusor exec`.

    python module_suite.py --fusor build/bin/fusor --out OUT.json [MODULE ...]

Each sample of torch.testing's module database, a torch.nn module with its
arguments, is exported in train() and in eval(). The program is run by the
interpreter, and compiled with and without fusion. The results are compared
with PyTorch in fp64. Samples that the import rejects, or that PyTorch cannot
export, are skipped and counted by reason.
"""

import collections
import copy
import functools
import subprocess

import opinfo_suite
import safetensors.torch
import torch
from torch.testing._internal.common_modules import module_db

# Compiled results are computed in fp32.
TOLERANCES = {"interpreter": 1e-6, "fused": 1e-4, "unfused": 1e-4}


class Sample(opinfo_suite.Call):
    """Calls a module. Returns its tensors."""

    def __init__(self, module, arguments):
        super().__init__(module, arguments.args, arguments.kwargs)

    def forward(self, *tensors):
        return tuple(opinfo_suite.flat(super().forward(*tensors)))


def samples_of(info, training):
    """Yields the calls of a module."""
    for given in info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False,
            training=training):
        if given.forward_input is None:
            continue
        torch.manual_seed(0)
        module = info.module_cls(*given.constructor_input.args,
                                 **given.constructor_input.kwargs)
        for part in module.modules():
            if "Dropout" in type(part).__name__:
                part.p = 0.0
        yield Sample(module.float().train(training), given.forward_input)


def run_sample(args, call, folder):
    """Returns "passed" or why the sample was skipped. Raises AssertionError
    for a failure."""
    if any(tensor.numel() == 0 for tensor in call.tensors):
        return "a tensor without elements"
    archive, source, out = (folder / name for name in ("m.pt2", "in", "out"))
    try:
        expected = copy.deepcopy(call).double()(
            *(tensor.double() if tensor.is_floating_point() else tensor
              for tensor in call.tensors))
        program = torch.export.export(call, tuple(call.tensors))
        torch.export.save(program, archive)
    except Exception as error:  # PyTorch may raise anything
        return f"PyTorch: {type(error).__name__}"
    safetensors.torch.save_file(
        {name: tensor.contiguous().clone() for name, tensor in zip(
            program.graph_signature.user_inputs, call.tensors)}, source)
    for way, flags in opinfo_suite.WAYS.items():
        done = subprocess.run(
            [args.fusor, "exec", archive, "--inputs", source, "--outputs", out,
             *flags], check=False, capture_output=True, text=True)
        if done.returncode == opinfo_suite.GRAPH_ERROR:
            return opinfo_suite.reason_of(done.stderr)
        assert done.returncode == 0, f"{way}: {done.stderr.strip()}"
        results = safetensors.torch.load_file(out)
        for i, value in enumerate(expected):
            actual = results[f"output{i}"].reshape(value.shape)
            assert opinfo_suite.same(actual, value, TOLERANCES[way]), (
                f"{way}: result {i} differs")
    return "passed"


def run_module(args, info, folder):
    counts = collections.Counter()
    failures = []
    for training in (False, True):
        for number, call in enumerate(samples_of(info, training)):
            if number == args.samples:
                break
            try:
                counts[run_sample(args, call, folder)] += 1
            except AssertionError as error:
                mode = "train" if training else "eval"
                failures.append(f"{mode}, sample {number}: {error}")
    return {"counts": counts, "failures": failures}


def main():
    args = opinfo_suite.arguments(__doc__, "MODULE", samples=6)
    opinfo_suite.run_suite(args, {
        info.module_cls.__name__: functools.partial(run_module, args, info)
        for info in module_db
        if not args.names or info.module_cls.__name__ in args.names})


if __name__ == "__main__":
    main()
