#!/usr/bin/env python3
"""Imports torchvision's classification models and compares them with PyTorch.

    python pytorch_models.py --fusor build/bin/fusor --archives FOLDER \\
        --out tests/results/pytorch-models [--speed] [NAME ...]

Writes OUT.json and the table OUT.md. A model that OUT.json already has is not
measured again. Archives stay in FOLDER, some 20 GB for all models.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

BATCH = 8           # of the timed step
ERROR_BATCH = 2     # of the compared step
ITERATIONS = 3
# For larger models, gradients in fp64 and the rest exceed 24 GB.
MAX_COMPARED_PARAMETERS = 250e6


def make(name, seed=0):
    """Returns the model without dropout and stochastic depth, whose random
    numbers would differ between the programs."""
    import torch
    import torchvision
    torch.manual_seed(seed)
    settings = ({"init_weights": False, "aux_logits": True}
                if name in ("googlenet", "inception_v3") else {})
    model = torchvision.models.get_model(name, weights=None, **settings).train()
    for module in model.modules():
        if isinstance(module, (torch.nn.Dropout,
                               torchvision.ops.StochasticDepth)):
            module.p = 0.0
        if isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0
    return model


def image_size(name):
    return 299 if name == "inception_v3" else 224


def export(model, name, path):
    import torch
    import torchvision
    for outputs in (torchvision.models.GoogLeNetOutputs,
                    torchvision.models.InceptionOutputs):
        torch.utils._pytree._register_namedtuple(
            outputs, serialized_type_name=outputs.__name__)
    size = image_size(name)
    program = torch.export.export(
        model, (torch.randn(4, 3, size, size),),
        dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(program, path)


def fusor(args, *arguments):
    """Runs fusor. Returns its output, or raises its error line."""
    done = subprocess.run([args.fusor, *map(str, arguments)], check=False,
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def gradients(model, images, cotangents):
    """Returns all gradients of sum(outputs * cotangents) as one fp64 vector."""
    import torch
    model.zero_grad(set_to_none=True)
    outputs = model(images)
    if torch.is_tensor(outputs):
        outputs = (outputs,)
    torch.autograd.backward(list(outputs), [c.to(images.dtype)
                                            for c in cotangents])
    return torch.cat([p.grad.double().flatten() for p in model.parameters()])


def errors(args, name, archive, outputs):
    """Returns the relative errors of all fp32 gradients together: fusor's,
    PyTorch's."""
    import safetensors.torch
    import torch
    generator = torch.Generator().manual_seed(1)
    size = image_size(name)
    images = torch.randn(ERROR_BATCH, 3, size, size, generator=generator)
    cotangents = [torch.randn(ERROR_BATCH, 1000, generator=generator)
                  / ERROR_BATCH for _ in range(outputs)]
    with tempfile.TemporaryDirectory() as folder:
        source, result = (pathlib.Path(folder) / part for part in ("in", "out"))
        tensors = {"x": images}
        for i, cotangent in enumerate(cotangents):
            tensors[f"grad/output{i}"] = cotangent
        safetensors.torch.save_file(tensors, source)
        fusor(args, "exec", archive, "--inputs", source, "--outputs", result,
              "--gradients")
        ours = safetensors.torch.load_file(result)
    exact_model = make(name).double()
    exact = gradients(exact_model, images.double(), cotangents)
    del exact_model
    model = make(name)
    own = torch.cat([ours["grad/" + parameter].double().flatten()
                     for parameter, _ in model.named_parameters()])
    theirs = gradients(model, images, cotangents)
    norm = exact.norm()
    return ((own - exact).norm() / norm).item(), (
        (theirs - exact).norm() / norm).item()


def eager_speed(name, compiled):
    """Returns images per second of forward, backward and SGD in PyTorch."""
    import torch
    model = make(name).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    size = image_size(name)
    images = torch.randn(BATCH, 3, size, size).to(
        memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (BATCH,))

    def step():
        optimizer.zero_grad(set_to_none=True)
        outputs = model(images)
        if torch.is_tensor(outputs):
            outputs = (outputs,)
        loss = torch.nn.functional.cross_entropy(outputs[0], labels)
        for side in outputs[1:]:
            loss = loss + 0.3 * torch.nn.functional.cross_entropy(side, labels)
        loss.backward()
        optimizer.step()

    run = torch.compile(step) if compiled else step
    seconds = []
    for i in range(ITERATIONS + 1):
        start = time.perf_counter()
        run()
        if i > 0:
            seconds.append(time.perf_counter() - start)
    return BATCH / statistics.median(seconds)


def measure(args, name):
    import torch
    row = {}
    archive = args.archives / f"{name}.pt2"
    model = make(name)
    parameters = sum(p.numel() for p in model.parameters())
    row["parameters"] = parameters
    if not archive.exists():
        export(model, name, archive)
    with torch.no_grad():
        size = image_size(name)
        result = model(torch.zeros(2, 3, size, size))
    outputs = 1 if torch.is_tensor(result) else len(result)
    del model
    try:
        text = fusor(args, "bench", "-a", archive, "-b", BATCH, "--iterations",
                     ITERATIONS, "--warmup", 1, "--kernel-cache", "off",
                     "--json", "-")
        bench = json.loads(text)
        row["nodes"] = bench["passes"][0]["nodes_before"]
        for key in ("kernels", "library_calls", "images_per_second"):
            row[key] = bench[key]
        row["compile_seconds"] = bench["compile_seconds"]["total"]
        row["planned_mib"] = bench["planned_peak_bytes"] / 2**20
        if parameters <= MAX_COMPARED_PARAMETERS:
            row["error"], row["torch_error"] = errors(args, name, archive,
                                                      outputs)
            if args.speed:
                row["torch_images_per_second"] = eager_speed(name, False)
                row["torch_compile_images_per_second"] = eager_speed(name, True)
    except RuntimeError as error:
        row["failure"] = str(error)
    return row


INTRODUCTION = """# torchvision's models, imported

Written by `pytorch_models.py`; its README has the command and what the columns
mean. {imported} of {count} models import and train a step. Median error over
PyTorch's: {median:.2f}. Steps of {batch} images on {threads} CPU threads.

"""

COLUMNS = ["model", "nodes", "kernels", "library calls", "kernels per call",
           "compile, s", "planned, MiB", "error over PyTorch's"]
SPEED_COLUMNS = ["over eager", "over torch.compile"]


def report(results):
    """Returns a document with all rows, sorted by name."""
    def number(row, key, form):
        return format(row[key], form) if key in row else ""

    def ratio(row, key, over):
        return f"{row[key] / row[over]:.2f}" if key in row and over in row else ""

    timed = any("torch_images_per_second" in row for row in results.values())
    columns = COLUMNS + (SPEED_COLUMNS if timed else [])
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, row in sorted(results.items()):
        if "failure" in row:
            lines.append(f"| {name} | {row['failure']}" + " |" * (
                len(columns) - 1))
            continue
        cells = [name, number(row, "nodes", "d"), number(row, "kernels", "d"),
                 number(row, "library_calls", "d"),
                 ratio(row, "kernels", "library_calls"),
                 number(row, "compile_seconds", ".2f"),
                 number(row, "planned_mib", ".0f"),
                 ratio(row, "error", "torch_error")]
        if timed:
            cells += [
                ratio(row, "images_per_second", "torch_images_per_second"),
                ratio(row, "images_per_second",
                      "torch_compile_images_per_second")]
        lines.append("| " + " | ".join(cells) + " |")
    errors = [row["error"] / row["torch_error"] for row in results.values()
              if "error" in row]
    return INTRODUCTION.format(
        imported=sum("failure" not in row for row in results.values()),
        count=len(results), median=statistics.median(errors), batch=BATCH,
        threads=os.cpu_count()) + "\n".join(lines) + "\n"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fusor", type=pathlib.Path, required=True)
    parser.add_argument("--archives", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True,
                        help="path of the results without its suffix")
    parser.add_argument("--speed", action="store_true",
                        help="time PyTorch's steps too, minutes a model")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME")
    return parser.parse_args()


def main():
    args = parse_arguments()
    if args.one:
        print(json.dumps(measure(args, args.names[0])))
        return
    import torchvision
    names = args.names or torchvision.models.list_models(
        module=torchvision.models)
    args.archives.mkdir(parents=True, exist_ok=True)
    stored = args.out.with_suffix(".json")
    results = json.loads(stored.read_text()) if stored.exists() else {}
    for name in names:
        if name in results:
            continue
        # A separate process returns its memory.
        done = subprocess.run(
            [sys.executable, __file__, "--one", *sys.argv[1:len(sys.argv)
             - len(args.names)], name], check=False, text=True,
            stdout=subprocess.PIPE)
        if done.returncode != 0:
            print(f"{name}: exit code {done.returncode}", file=sys.stderr)
            continue
        results[name] = json.loads(done.stdout.splitlines()[-1])
        stored.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        args.out.with_suffix(".md").write_text(report(results))
        print(name, results[name], flush=True)


if __name__ == "__main__":
    main()
