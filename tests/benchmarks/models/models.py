#!/usr/bin/env python3
"""Compares the training speed of 20 torchvision models in fusor and PyTorch.

    torch-venv/bin/python tests/benchmarks/models/models.py \\
        --fusor build/bin/fusor --archives FOLDER --out OUT [MODEL ...]

Runs fusor and PyTorch (eager in two layouts and compiled, all with jemalloc and
huge pages) in turns, each in its own process: forward, backward and SGD with
momentum on synthetic images. PyTorch's processes stay between the rounds of a
model, so that it compiles once. With --jax-python, also ResNet-50 in JAX.
Writes OUT.json (every run), OUT.md (a table) and OUT.svg (a chart). A model and
dtype that OUT.json already has is not measured again. README.md in this folder
says how to read the results.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import shlex
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "cpu_peers"), str(HERE.parent / "pytorch_models")]

import compare  # pylint: disable=wrong-import-position
import pytorch_models  # pylint: disable=wrong-import-position

BATCH = 16
MODELS = [
    "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2",
    "regnet_y_400mf", "regnet_x_1_6gf", "densenet121", "googlenet",
    "inception_v3", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_large",
    "mnasnet1_0", "shufflenet_v2_x1_0", "efficientnet_b0", "efficientnet_v2_s",
    "convnext_tiny", "vgg16_bn", "vit_b_16", "swin_t",
]
EAGER = ["torch tuned", "torch tuned nchw"]
# Keys of a run's output that are stored.
KEPT = ["images_per_second", "step_ms", "first_step_seconds", "peak_rss_bytes",
        "planned_peak_bytes", "kernels", "library_calls", "versions"]
COMPILED = "torch compile tuned"
JAX = "jax"
JAX_MODEL = "resnet50"


def fusor_command(args, model, command, *extra):
    return [*shlex.split(args.fusor), command, "-a",
            pytorch_models.archive_of(args.archives, model),
            "-b", args.batch, "--image-size", pytorch_models.image_size(model),
            "--dtype", args.dtype, "--threads", args.threads, "--json", "-",
            *extra]


def programs(args, model):
    table = [compare.Program(compare.FUSOR, lambda batch: fusor_command(
        args, model, "bench", "--warmup", args.warmup, "--iterations",
        args.iterations), compare.last_json)]
    table += [compare.torch_program(name, args, ["--on-demand"])
              for name in args.torch]
    if args.jax_python and model == JAX_MODEL:
        table.append(compare.Program(JAX, lambda batch: [
            args.jax_python, str(HERE.parent / "gpu" / "jax_peer.py"),
            "--dtype", args.dtype, "-b", str(batch),
            "--warmup", str(args.warmup), "--iterations", str(args.iterations)],
            compare.last_json))
    return table


def first_step(args, model):
    """Returns fusor's seconds from the start of the process to the end of the
    first step, without kernel cache."""
    cold = compare.Program("fusor cold", lambda batch: fusor_command(
        args, model, "bench", "--warmup", 0, "--iterations", 1,
        "--kernel-cache", "off"), compare.last_json)
    return compare.run(cold, args.batch, args)


def roofline(args, model):
    """Returns the percentage of the machine's limit that convolutions and
    matmuls, and the rest, reach."""
    profile = compare.Program("fusor profile", lambda batch: fusor_command(
        args, model, "plan", "--profile"),
        lambda text: {"images_per_second": 0, **json.loads(text)})
    classes = compare.run(profile, args.batch, args).get("result", {}).get(
        "op_classes", {})
    out = {}
    for key, heavy in (("contractions", True), ("rest", False)):
        rows = [row for name, row in classes.items()
                if name.startswith(("conv", "matmul")) == heavy]
        measured = sum(row["measured_us"] for row in rows)
        if measured:
            out[key] = 100 * sum(row["limit_us"] for row in rows) / measured
    return out


def kept(record):
    """Returns a run without most of its output."""
    if "result" not in record:
        return record
    return {**record, "result": {key: record["result"][key] for key in KEPT
                                 if key in record["result"]}}


def measure(args, model):
    """Returns all numbers of a model."""
    args.arch, args.image_size = model, pytorch_models.image_size(model)
    table = programs(args, model)
    runs = []
    with compare.LastingPrograms() as lasting:
        for pair in range(args.pairs):
            shift = pair % len(table)
            for program in table[shift:] + table[:shift]:
                execute = (lasting.execute if program.name in args.torch
                           else compare.execute)
                record = kept({"round": pair, **compare.run(
                    program, args.batch, args, execute)})
                runs.append(record)
                print(f"{model} {args.dtype} round {pair} {program.name}: "
                      + (record.get("error")
                         or f"{record['images_per_second']:.2f} images/s"),
                      file=sys.stderr, flush=True)
    return {"model": model, "dtype": args.dtype, "runs": runs,
            "cold": kept(first_step(args, model)), "roofline": roofline(args, model)}


def value(row, program, key):
    """Returns the median over rounds of a number that a program printed."""
    found = [run["result"][key] for run in row["runs"]
             if run["program"] == program and key in run.get("result", {})]
    return statistics.median(found) if found else None


def summarise(row, batch):
    """Returns a model's line of the table."""
    peers = dict.fromkeys(run["program"] for run in row["runs"])
    peers.pop(compare.FUSOR)
    rates = {name: value(row, name, "images_per_second") for name in peers}
    eager = [name for name in EAGER if rates.get(name)]
    best_eager = max(eager, key=rates.get, default=None)
    best = max((n for n in rates if rates[n]), key=rates.get, default=None)

    def over(name):
        return name and compare.ratio(row["runs"], compare.FUSOR, name, batch)

    def peak(name):
        return name and value(row, name, "peak_rss_bytes")

    plan = next((run["result"] for run in row["runs"]
                 if run["program"] == compare.FUSOR and "result" in run), {})
    return {
        "model": row["model"], "dtype": row["dtype"],
        "fusor": value(row, compare.FUSOR, "images_per_second"),
        "best": best, "best_rate": rates.get(best), "over_best": over(best),
        "over_eager": over(best_eager), "over_compile": over(
            COMPILED if rates.get(COMPILED) else None),
        "first": row["cold"].get("wall_seconds"),
        "first_eager": best_eager and value(row, best_eager,
                                            "first_step_seconds"),
        "first_compile": value(row, COMPILED, "first_step_seconds"),
        "peak": value(row, compare.FUSOR, "peak_rss_bytes"),
        "peak_best": peak(best), "planned": plan.get("planned_peak_bytes"),
        "kernels": plan.get("kernels"), "calls": plan.get("library_calls"),
        **row["roofline"]}


COLUMNS = [
    ("model", "model", "{}"), ("dtype", "dtype", "{}"),
    ("fusor", "fusor, images/s", "{:.1f}"),
    ("best_rate", "best peer", "{:.1f}"), ("best", "which", "{}"),
    ("over_best", "**over best peer**", "**{:.2f}**"),
    ("over_eager", "over eager", "{:.2f}"),
    ("over_compile", "over torch.compile", "{:.2f}"),
    ("first", "first step, s", "{:.1f}"),
    ("first_eager", "eager, s", "{:.1f}"),
    ("first_compile", "torch.compile, s", "{:.1f}"),
    ("peak", "peak, MiB", "{:.0f}"), ("peak_best", "best peer, MiB", "{:.0f}"),
    ("planned", "planned, MiB", "{:.0f}"), ("kernels", "kernels", "{}"),
    ("calls", "library calls", "{}"),
    ("contractions", "limit, contractions, %", "{:.0f}"),
    ("rest", "limit, rest, %", "{:.0f}")]
MIB = {"peak", "peak_best", "planned"}


def geometric_mean(lines, dtype):
    found = [line["over_best"] for line in lines
             if line["dtype"] == dtype and line["over_best"]]
    return statistics.geometric_mean(found) if found else None


def markdown(report, lines):
    where, settings = report["host"], report["settings"]
    models = len({line["model"] for line in lines})
    out = [f"# Training speed of {models} models on the CPU", "",
           f"{report['date']}; {where['cpu']}, {where['cores']} cores; batch "
           f"{settings['batch']}; {settings['pairs']} rounds in turns, "
           f"{settings['iterations']} steps each after {settings['warmup']} of "
           f"warm-up; load at start {where['load_at_start'][0]:.1f}.", "",
           f"Command: `{report['command']}`", ""]
    usual = report["date"], settings["pairs"]
    others = collections.defaultdict(list)
    for row in report["rows"]:
        date = row.get("date", report["date"])
        rounds = 1 + max(run["round"] for run in row["runs"])
        if (date, rounds) != usual:
            others[date, row["dtype"], rounds].append(row["model"])
    for (date, dtype, rounds), names in others.items():
        out += [f"Measured on {date}, {dtype}, {rounds} "
                f"round{'s' if rounds > 1 else ''}: {', '.join(names)}.", ""]
    for dtype in dict.fromkeys(line["dtype"] for line in lines):
        mean = geometric_mean(lines, dtype)
        if mean:
            out += [f"Geometric mean over the best peer, {dtype}: {mean:.2f}.",
                    ""]
    out += ["| " + " | ".join(title for _, title, _ in COLUMNS) + " |",
            "|---" * len(COLUMNS) + "|"]
    for line in lines:
        cells = []
        for key, _, form in COLUMNS:
            number = line.get(key)
            if number is not None and key in MIB:
                number /= 2**20
            cells.append("" if number is None else form.format(number))
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def chart(lines):
    """Returns bars of the speed over the best peer, which is the line at 1."""
    bars = [line for line in lines if line["over_best"]]
    scale, left, step = 160, 190, 20
    width = left + scale * max([2] + [b["over_best"] for b in bars]) + 60
    height = step * len(bars) + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
           f'height="{height}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           '<text x="8" y="16">fusor over the best of PyTorch, training '
           'step on the CPU</text>']
    for i, bar in enumerate(bars):
        y = 28 + step * i
        length = scale * bar["over_best"]
        color = "#2a78b5" if bar["dtype"] == "fp32" else "#e08a1e"
        out += [f'<text x="{left - 6}" y="{y + 12}" text-anchor="end">'
                f'{bar["model"]} {bar["dtype"]}</text>',
                f'<rect x="{left}" y="{y}" width="{length:.1f}" height="15" '
                f'fill="{color}"/>',
                f'<text x="{left + length + 4:.1f}" y="{y + 12}">'
                f'{bar["over_best"]:.2f}</text>']
    one = left + scale
    out += [f'<line x1="{one}" y1="24" x2="{one}" y2="{height - 8}" '
            'stroke="black" stroke-dasharray="3 3"/>', "</svg>"]
    return "\n".join(out) + "\n"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fusor", required=True, help="the fusor program")
    parser.add_argument("--python", default=sys.executable,
                        help="a Python that has PyTorch (default: this one)")
    parser.add_argument("--jax-python",
                        help="a Python that has JAX, which runs resnet50, too")
    parser.add_argument("--archives", type=pathlib.Path, required=True,
                        help="folder of exported models, which are reused")
    parser.add_argument("--out", type=pathlib.Path, required=True,
                        help="writes OUT.json, OUT.md and OUT.svg")
    parser.add_argument("--torch", nargs="*", choices=EAGER + [COMPILED],
                        default=EAGER + [COMPILED],
                        help="which PyTorch variants to run")
    parser.add_argument("--dtypes", nargs="+", choices=["fp32", "bf16"],
                        default=["fp32", "bf16"])
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--pairs", type=int, default=5, help="rounds")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=float, default=1800,
                        help="seconds for one run")
    parser.add_argument("models", nargs="*", metavar="MODEL", default=MODELS)
    args = parser.parse_args()
    for model in args.models:
        if model not in MODELS:
            parser.error(f"{model}: expected one of {', '.join(MODELS)}")
    return args


def main():
    args = parse_arguments()
    stored = pathlib.Path(f"{args.out}.json")
    report = {"date": datetime.date.today().isoformat(),
              "host": compare.host(), "command": shlex.join(sys.argv),
              "settings": {key: getattr(args, key) for key in
                           ("batch", "pairs", "warmup", "iterations",
                            "threads", "torch")}, "rows": []}
    today = report["date"]
    if stored.exists():
        report = json.loads(stored.read_text())
    done = {(row["model"], row["dtype"]) for row in report["rows"]}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for args.dtype in args.dtypes:
        for model in args.models:
            if (model, args.dtype) in done:
                continue
            report["rows"].append({"date": today, **measure(args, model)})
            lines = [summarise(row, args.batch) for row in report["rows"]]
            stored.write_text(json.dumps(report, indent=1) + "\n")
            pathlib.Path(f"{args.out}.md").write_text(markdown(report, lines))
            pathlib.Path(f"{args.out}.svg").write_text(chart(lines))
    return 1 if any("error" in run for row in report["rows"]
                    for run in row["runs"]) else 0


if __name__ == "__main__":
    sys.exit(main())
