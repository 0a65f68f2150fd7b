#!/usr/bin/env python3
"""Runs ONNX's backend node tests through `fusor exec`.

    python node_suite.py --fusor build/bin/fusor --out OUT.json [NAME ...]

The tests are those of pip's onnx (onnx.backend.test): a model of one operator,
or of the operators that define it, with inputs and expected results. Each is
interpreted, and compiled with and without fusion. Tests with dtypes that the IR
lacks are skipped. Tests that the import rejects are counted separately, by the
reason of the error. NAME selects tests whose name contains it.
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import threading
import warnings

import ml_dtypes
import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

WAYS = {"interpreter": ["--interpret"], "fused": [],
        "unfused": ["--fusion", "off"]}
GRAPH_ERROR = 3
CODES = {"float64": "F64", "float32": "F32", "float16": "F16",
         "bfloat16": "BF16", "int64": "I64", "int32": "I32", "uint8": "U8",
         "bool": "BOOL"}
DTYPES = {code: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
          for name, code in CODES.items()}
# Minimum relative tolerances of 16-bit floats: a few units in the last place.
TOLERANCES = {"float16": 5e-3, "bfloat16": 3e-2}
RANDOM = {"Bernoulli", "RandomUniform", "RandomUniformLike", "RandomNormal",
          "RandomNormalLike", "Multinomial"}
OLDEST_OPSET = 13


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        tensor = np.asarray(tensor)
        raw = np.ascontiguousarray(tensor).tobytes()
        header[name] = {"dtype": CODES[str(tensor.dtype)],
                        "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(
            raw[8 + length + start:8 + length + end],
            DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def is_random(node):
    """Returns whether the expected results are numpy's random numbers."""
    return node.op_type in RANDOM


def reason_to_skip(case):
    """Returns why a test cannot run, or ""."""
    opset = max(entry.version for entry in case.model.opset_import
                if entry.domain in ("", "ai.onnx")) if any(
                    entry.domain in ("", "ai.onnx")
                    for entry in case.model.opset_import) else 0
    if opset < OLDEST_OPSET:
        return f"opset before {OLDEST_OPSET}"
    for inputs, outputs in case.data_sets:
        for value in (*inputs, *outputs):
            if not isinstance(value, (np.ndarray, np.generic)):
                kind = type(value).__name__
                return ("dtype of less than 8 bits or of float8"
                        if kind == "TensorProto" else
                        "a value that is no tensor")
            dtype = str(np.asarray(value).dtype)
            if dtype not in CODES:
                return f"dtype {dtype}"
            if np.asarray(value).size == 0:
                return "a tensor without elements"
    if any(is_random(node) for node in case.model.graph.node):
        return "random numbers"
    if "training_dropout" in case.name and "zero_ratio" not in case.name:
        return "random numbers"
    return ""


def reason_of(message):
    """Returns an error's line without the parts that differ between tests."""
    message = message.split("model.onnx: ", 1)[-1]
    message = re.sub(r" at [^:]*:", ":", message)
    message = re.sub(r"operand (\d+), [^:]*:", r"operand \1:", message)
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "N", message).strip()[:160]


def same(actual, expected, case):
    if actual.shape != expected.shape:
        return False
    dtype = str(expected.dtype)
    tolerance = max(case.rtol, TOLERANCES.get(dtype, 0))
    absolute = max(case.atol, TOLERANCES.get(dtype, 0) * 1e-1)
    if dtype == "float32":
        # Sums that cancel are off by numpy's own rounding errors.
        finite = expected[np.isfinite(expected)]
        greatest = np.abs(finite).max() if finite.size else 0
        absolute = max(absolute, 1e-6 * float(greatest))
    return np.allclose(actual.astype(np.float64), expected.astype(np.float64),
                       rtol=tolerance, atol=absolute, equal_nan=True)


def run_case(fusor, case, folder):
    """Returns an outcome and its reason: "passed", "skipped" by a rule of this
    script, "rejected" by an error that names what is missing, or "failed"."""
    skip = reason_to_skip(case)
    if skip:
        return "skipped", skip
    model, source, out = (folder / name
                          for name in ("model.onnx", "in", "out"))
    onnx.save(case.model, model)
    graph = case.model.graph
    for inputs, outputs in case.data_sets:
        write_safetensors(source, dict(zip(
            (value.name for value in graph.input), inputs)))
        for way, flags in WAYS.items():
            done = subprocess.run(
                [fusor, "exec", model, "--inputs", source, "--outputs", out,
                 *flags], check=False, capture_output=True, text=True)
            if done.returncode == GRAPH_ERROR and way == "interpreter":
                return "rejected", reason_of(done.stderr)
            if done.returncode != 0:
                return "failed", f"{way}: {done.stderr.strip()[-300:]}"
            results = read_safetensors(out)
            for value, expected in zip(graph.output, outputs):
                if value.name not in results:
                    return "failed", f"{way}: no {value.name}"
                expected = np.asarray(expected)
                if not same(results[value.name], expected, case):
                    return "failed", f"{way}: {value.name} differs"
                stored = results[value.name].dtype
                if way != "interpreter" and stored != expected.dtype:
                    return "failed", f"{way}: {value.name} is {stored}"
    return "passed", ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fusor", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    fusor = args.fusor.resolve()
    warnings.simplefilter("ignore")
    cases = [case for case in collect_testcases(None)
             if not args.names or any(name in case.name for name in args.names)]
    outcomes = {}
    local = threading.local()
    with tempfile.TemporaryDirectory() as top:
        def run(case):
            if not hasattr(local, "folder"):
                local.folder = pathlib.Path(tempfile.mkdtemp(dir=top))
            return case.name, run_case(fusor, case, local.folder)
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            for name, outcome in pool.map(run, cases):
                outcomes[name] = outcome
                if outcome[0] == "failed":
                    print(name, outcome[1], sep=": ", flush=True)
    counts = collections.Counter(state for state, _ in outcomes.values())
    unsupported = ("skipped", "rejected")
    reasons = {
        kind: collections.Counter(reason for state, reason in outcomes.values()
                                  if state == kind)
        for kind in unsupported}
    if args.out:
        args.out.write_text(json.dumps({
            "onnx": onnx.__version__,
            "counts": counts,
            **{f"{kind} by reason": dict(reasons[kind].most_common())
               for kind in unsupported},
            "failed": {name: reason for name, (state, reason)
                       in outcomes.items() if state == "failed"},
            **{kind: {name: reason for name, (state, reason)
                      in outcomes.items() if state == kind}
               for kind in unsupported},
            "passed": [name for name, (state, _) in outcomes.items()
                       if state == "passed"],
        }, indent=1) + "\n")
    for kind in unsupported:
        for reason, count in reasons[kind].most_common(60):
            print(f"{count:5}  {kind}: {reason}")
    print(dict(counts))
    sys.exit(counts["failed"] != 0)


if __name__ == "__main__":
    main()
