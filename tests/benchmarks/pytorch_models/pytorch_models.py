#!/usr/bin/env python3
"""Imports torchvision's classification models, and those of other_models.py,
and compares them with PyTorch.

    python pytorch_models.py --fusor build/bin/fusor --archives FOLDER \\
        --out tests/results/pytorch-models [--seeds N] [--speed PART] [NAME ...]

Writes OUT.json and the table OUT.md. Measures only what OUT.json lacks.
Archives stay in FOLDER, some 20 GB for all models.
"""

import argparse
import copy
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "cpu_peers"))

import bench_torch  # pylint: disable=wrong-import-position
import compare  # pylint: disable=wrong-import-position

BATCH = 8           # of the timed step
ERROR_BATCH = 2     # of the compared step
ROUNDS = 3          # of the programs that are timed
ITERATIONS = 3
OTHERS = ["bert_base", "gpt2", "lstm", "unet"]  # of other_models.py
# For larger models, gradients in fp64 and the rest exceed 24 GB.
MAX_COMPARED_PARAMETERS = 250e6
# fusor's flags by dtype. PyTorch's bf16 is autocast.
DTYPES = {"fp32": [], "bf16": ["--amp"]}
# PyTorch's programs by part of the speed. The fastest one counts.
SPEED = {"eager": ["torch tuned", "torch tuned nchw"],
         "torch.compile": ["torch compile tuned"]}


def make(name, seed=0):
    """Returns the model without dropout and stochastic depth, whose random
    numbers would differ between the programs."""
    import other_models
    import torch
    import torchvision
    torch.manual_seed(seed)
    if name in OTHERS:
        return other_models.MODELS[name][0]().train()
    settings = ({"init_weights": False, "aux_logits": True}
                if name in ("googlenet", "inception_v3") else {})
    model = torchvision.models.get_model(name, weights=None, **settings).train()
    bench_torch.disable_dropout(model)
    return model


def image_size(name):
    return 299 if name == "inception_v3" else 224


def inputs_of(name, batch):
    """Returns the inputs of forward() by name."""
    import other_models
    import torch
    if name in OTHERS:
        return other_models.MODELS[name][1](batch)
    size = image_size(name)
    return {"x": torch.randn(batch, 3, size, size)}


def export(model, name, path):
    import torch
    import torchvision
    for outputs in (torchvision.models.GoogLeNetOutputs,
                    torchvision.models.InceptionOutputs):
        torch.utils._pytree._register_namedtuple(
            outputs, serialized_type_name=outputs.__name__)
    inputs = tuple(inputs_of(name, 4).values())
    program = torch.export.export(
        model, inputs,
        dynamic_shapes=({0: torch.export.Dim("batch")},) * len(inputs))
    torch.export.save(program, path)


def archive_of(folder, name):
    """Returns the exported model's file, which is written if it is missing."""
    path = folder / f"{name}.pt2"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.pt2")
        export(make(name), name, part)
        part.rename(path)  # complete, even if an earlier export was ended
    return path


def fusor(args, *arguments):
    """Runs fusor. Returns its output, or raises its error line."""
    done = subprocess.run([args.fusor, *map(str, arguments)], check=False,
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def results(model, inputs):
    """Returns a tuple of the model's results."""
    import torch
    outputs = model(*inputs.values())
    return (outputs,) if torch.is_tensor(outputs) else tuple(outputs)


def gradients(model, inputs, cotangents, autocast=False):
    """Returns all gradients of sum(outputs * cotangents) as one fp64 vector."""
    import torch
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, autocast):
        outputs = results(model, inputs)
    torch.autograd.backward(
        list(outputs), [c.to(o.dtype) for o, c in zip(outputs, cotangents)])
    return joined(p.grad for p in model.parameters())


def joined(tensors):
    import torch
    return torch.cat([tensor.double().flatten() for tensor in tensors])


def errors(args, name, archive, seed):
    """Returns the relative error of all gradients together, {dtype: {program:
    error}}. The seed determines the weights and the inputs."""
    import safetensors.torch
    import torch
    model = make(name, seed)
    weights = {key: p.detach() for key, p in model.named_parameters()}
    inputs = inputs_of(name, ERROR_BATCH)
    with torch.no_grad():
        shapes = [output.shape
                  for output in results(copy.deepcopy(model), inputs)]
    cotangents = [torch.randn(shape) / ERROR_BATCH for shape in shapes]
    exact = gradients(
        copy.deepcopy(model).double(),
        {key: value.double() if value.is_floating_point() else value
         for key, value in inputs.items()}, cotangents)

    def error(found):
        return ((found - exact).norm() / exact.norm()).item()

    out = {}
    with tempfile.TemporaryDirectory() as folder:
        source, result = (pathlib.Path(folder) / part for part in ("in", "out"))
        # Weights in the file replace those of the archive.
        safetensors.torch.save_file(
            {**inputs, **weights,
             **{f"grad/output{i}": c for i, c in enumerate(cotangents)}}, source)
        for dtype, flags in DTYPES.items():
            fusor(args, "exec", archive, "--inputs", source, "--outputs",
                  result, "--gradients", *flags)
            ours = safetensors.torch.load_file(result)
            out[dtype] = {
                "fusor": error(joined(ours["grad/" + key] for key in weights)),
                "torch": error(gradients(model, inputs, cotangents,
                                         dtype == "bf16"))}
    return out


def speed(args, name, archive, parts):
    """Returns the images per second of fusor and of PyTorch's programs in turns,
    {part: {program: [number of each round]}}, or {} if a program failed."""
    settings = argparse.Namespace(
        python=sys.executable, arch=name, image_size=image_size(name),
        dtype="fp32", threads=os.cpu_count(), batches=[BATCH], pairs=ROUNDS,
        warmup=1, iterations=ITERATIONS, timeout=1800)
    table = [compare.Program(compare.FUSOR, lambda batch: [
        args.fusor, "bench", "-a", archive, "-b", batch, "--threads",
        settings.threads, "--warmup", settings.warmup, "--iterations",
        settings.iterations, "--json", "-"], compare.last_json)]
    table += [compare.torch_program(program, settings, ["--no-dropout"])
              for part in parts for program in SPEED[part]]
    runs = compare.measure(table, settings)
    if any("error" in run for run in runs):
        return {}
    return {part: {program: list(compare.speeds(runs, program, BATCH).values())
                   for program in (compare.FUSOR, *SPEED[part])}
            for part in parts}


def plan(args, archive):
    """Returns the figures of the compiled training step."""
    bench = json.loads(fusor(
        args, "bench", "-a", archive, "-b", BATCH, "--iterations", 1,
        "--warmup", 0, "--kernel-cache", "off", "--json", "-"))
    return {"nodes": bench["passes"][0]["nodes_before"],
            "kernels": bench["kernels"],
            "library_calls": bench["library_calls"],
            "compile_seconds": bench["compile_seconds"]["total"],
            "planned_mib": bench["planned_peak_bytes"] / 2**20}


def comparable(row):
    return row["parameters"] <= MAX_COMPARED_PARAMETERS


def is_timed(name, row):
    return comparable(row) and name not in OTHERS


def missing_seeds(args, row):
    measured = len(row["errors"]["fp32"]["fusor"]) if "errors" in row else 0
    return range(measured, args.seeds) if comparable(row) else []


def missing_parts(args, name, row):
    """Returns the parts of the speed that are asked for and not measured."""
    return [part for part in args.speed
            if part not in row.get("speed", {}) and is_timed(name, row)]


def complete(args, name, row):
    return ("failure" not in row and "kernels" in row
            and not missing_seeds(args, row)
            and not missing_parts(args, name, row))


def measure(args, name, row):
    """Adds to the row what it lacks."""
    archive = archive_of(args.archives, name)
    row.pop("failure", None)
    if "parameters" not in row:
        row["parameters"] = sum(p.numel() for p in make(name).parameters())
    try:
        if "kernels" not in row:
            row.update(plan(args, archive))
        for seed in missing_seeds(args, row):
            add_errors(row, errors(args, name, archive, seed))
        parts = missing_parts(args, name, row)
        if parts:
            row.setdefault("speed", {}).update(
                speed(args, name, archive, parts))
    except RuntimeError as error:
        row["failure"] = str(error)


def add_errors(row, found):
    """Adds the errors of another seed."""
    lists = row.setdefault("errors", {})
    for dtype, by_program in found.items():
        for program, error in by_program.items():
            lists.setdefault(dtype, {}).setdefault(program, []).append(error)


INTRODUCTION = """# torchvision's and other models, imported

Written by `pytorch_models.py`; its README has the command and what the columns
mean. {imported} of {count} models import and train a step. Steps of {batch}
samples on {threads} CPU threads.

"""

COLUMNS = ["model", "nodes", "kernels", "library calls", "kernels per call",
           "compile, s", "planned, MiB"]


def median_ratio(ours, theirs):
    return statistics.median(a / b for a, b in zip(ours, theirs))


def error_ratio(row, dtype):
    """Returns fusor's error over PyTorch's, the median over seeds, or None."""
    if "errors" not in row:
        return None
    found = row["errors"][dtype]
    return median_ratio(found["fusor"], found["torch"])


def speed_ratio(row, part):
    """Returns fusor's speed over PyTorch's, the median over rounds, or None."""
    found = row.get("speed", {}).get(part)
    if found is None:
        return None
    best = max(SPEED[part], key=lambda program: statistics.median(found[program]))
    return median_ratio(found[compare.FUSOR], found[best])


def error_summary(rows, dtype):
    """Returns a sentence about the errors of all models."""
    ratios = [ratio for ratio in (error_ratio(row, dtype) for row in rows)
              if ratio is not None]
    if not ratios:
        return ""
    return (f"Error over PyTorch's, {dtype}: median {statistics.median(ratios):.2f} "
            f"of {len(ratios)} models, above 2 for "
            f"{sum(ratio > 2 for ratio in ratios)}.\n\n")


def speed_summary(rows, part):
    """Returns a paragraph about the speed over one part of PyTorch."""
    ratios = [ratio for ratio in (speed_ratio(row, part) for row in rows)
              if ratio is not None]
    return (f"Speed over {part}: geometric mean "
            f"{statistics.geometric_mean(ratios):.2f} of {len(ratios)} models, "
            f"below 1 for {sum(ratio < 1 for ratio in ratios)}.\n\n")


def cells_of(name, row, parts):
    """Returns the cells of a model's line."""
    def form(number, how):
        return "" if number is None else format(number, how)

    kernels, calls = row.get("kernels"), row.get("library_calls")
    return [name, form(row.get("nodes"), "d"), form(kernels, "d"),
            form(calls, "d"), form(kernels / calls if calls else None, ".2f"),
            form(row.get("compile_seconds"), ".2f"),
            form(row.get("planned_mib"), ".0f"),
            *(form(error_ratio(row, dtype), ".2f") for dtype in DTYPES),
            *(form(speed_ratio(row, part), ".2f") for part in parts)]


def report(results):
    """Returns a document with all rows, sorted by name."""
    parts = [part for part in SPEED
             if any(part in row.get("speed", {}) for row in results.values())]
    columns = [*COLUMNS, *(f"error over PyTorch's, {dtype}" for dtype in DTYPES),
               *(f"speed over {part}" for part in parts)]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, row in sorted(results.items()):
        if "failure" in row:
            lines.append(f"| {name} | {row['failure']}" + " |" * (
                len(columns) - 1))
            continue
        lines.append("| " + " | ".join(cells_of(name, row, parts)) + " |")
    return INTRODUCTION.format(
        imported=sum("failure" not in row for row in results.values()),
        count=len(results), batch=BATCH, threads=os.cpu_count()) + "".join(
            error_summary(results.values(), dtype) for dtype in DTYPES
        ) + "".join(speed_summary(results.values(), part) for part in parts
                    ) + "\n".join(lines) + "\n"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fusor", type=pathlib.Path, required=True)
    parser.add_argument("--archives", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True,
                        help="path of the results without its suffix")
    parser.add_argument("--seeds", type=int, default=3,
                        help="compare the errors for this many weights and "
                        "images (default: 3)")
    parser.add_argument("--speed", action="append", choices=SPEED, default=[],
                        help="time fusor and this part of PyTorch in turns "
                        "(repeatable)")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME")
    return parser.parse_args()


def main():
    args = parse_arguments()
    stored = args.out.with_suffix(".json")
    rows = json.loads(stored.read_text()) if stored.exists() else {}
    if args.one:
        row = rows.get(args.names[0], {})
        measure(args, args.names[0], row)
        print(json.dumps(row))
        return
    import torchvision
    names = args.names or [*torchvision.models.list_models(
        module=torchvision.models), *OTHERS]
    for name in names:
        if name in rows and complete(args, name, rows[name]):
            continue
        # A separate process returns its memory.
        done = subprocess.run(
            [sys.executable, __file__, "--one", *sys.argv[1:len(sys.argv)
             - len(args.names)], name], check=False, text=True,
            stdout=subprocess.PIPE)
        if done.returncode != 0:
            print(f"{name}: exit code {done.returncode}", file=sys.stderr)
            continue
        rows[name] = json.loads(done.stdout.splitlines()[-1])
        stored.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
        args.out.with_suffix(".md").write_text(report(rows))
        print(name, rows[name], flush=True)


if __name__ == "__main__":
    main()
