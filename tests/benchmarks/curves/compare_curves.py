#!/usr/bin/env python3
"""Tests whether fusor learns like PyTorch: trains both on the same images by
the same protocol and compares the mean loss of the last quarter of the steps.

    compare_curves.py DATA --fusor build/bin/fusor \\
        --python torch-venv/bin/python --protocol cifar --dtype fp32 \\
        --out tests/results/curves-cifar-fp32

A single run says little, since training is chaotic and seeds differ. PyTorch
runs with five seeds, alternately in NCHW and channels-last. The mean over
fusor's seeds must be between the smallest and the largest of them. Writes
OUT.json (all losses) and OUT.md. Exits with 1 if the mean is outside. --ranks
divides fusor's batch among several ranks. --torch-from uses PyTorch's runs
from the OUT.json of another call.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

import protocols

HERE = pathlib.Path(__file__).resolve().parent
LAYOUTS = ["nchw", "channels_last"]


def torch_command(args, seed):
    return [args.python, str(HERE / "train_torch.py"), args.data, "--protocol",
            args.protocol, "--seed", str(seed), "--layout",
            LAYOUTS[seed % len(LAYOUTS)], "--dtype", args.dtype, "--threads",
            str(args.threads)]


def fusor_command(args, seed, log):
    p = protocols.PROTOCOLS[args.protocol]
    launch = (["launch", "--nproc-per-node", str(args.ranks), "--"]
              if args.ranks > 1 else [])
    return [*shlex.split(args.fusor), *launch, "train", args.data, "--arch",
            p.arch,
            "--image-size", str(p.image_size), "--train-transform",
            p.train_transform, "--max-per-class", str(p.max_per_class), "-b",
            str(p.batch // args.ranks), "--iterations", str(p.steps), "--epochs", "1000",
            "--lr", str(p.lr), "--lr-schedule", "cosine", "--warmup-steps",
            str(p.warmup_steps), "--mom", str(p.momentum), "--wd",
            str(p.weight_decay), "--mean", *map(str, p.mean), "--std",
            *map(str, p.std), "--dtype", args.dtype, "--threads",
            str(args.threads), "--seed", str(seed), "--training-only",
            "--no-checkpoints", "--log-jsonl", str(log)]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        sys.exit(f"compare_curves: {command[0]} ended with "
                 f"{done.returncode}: {lines[-1] if lines else 'no output'}")
    return done.stdout


def torch_losses(args, seed):
    answer = json.loads(run(torch_command(args, seed)).splitlines()[-1])
    return answer["losses"], answer["versions"]


def stored_runs(args):
    """Returns PyTorch's runs and versions from another report on the same
    protocol."""
    report = json.loads(args.torch_from.read_text())
    protocol = json.loads(json.dumps(
        dataclasses.asdict(protocols.PROTOCOLS[args.protocol])))
    if (report["protocol"], report["dtype"]) != (protocol, args.dtype):
        sys.exit(f"compare_curves: {args.torch_from}: of another protocol or "
                 f"dtype than {args.protocol} in {args.dtype}")
    return report["losses"]["torch"], report["versions"]


def fusor_losses(args, seed):
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log.jsonl"
        run(fusor_command(args, seed, log))
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def last_quarter(losses):
    return statistics.mean(losses[-(len(losses) // 4):])


def summarise(torch_runs, fusor_runs):
    """Returns {torch: {seed: mean of the last quarter}, fusor: likewise, low,
    high, mean: fusor's over seeds, inside}."""
    torch = {seed: last_quarter(run) for seed, run in torch_runs.items()}
    fusor = {seed: last_quarter(run) for seed, run in fusor_runs.items()}
    low, high = min(torch.values()), max(torch.values())
    mean = statistics.mean(fusor.values())
    return {"torch": torch, "fusor": fusor, "low": low, "high": high,
            "mean": mean, "inside": low <= mean <= high}


def markdown(report):
    p, s = report["protocol"], report["summary"]
    lines = [
        f"# {p['arch']} at {p['image_size']} px, {report['dtype']}: "
        f"{p['steps']} steps beside PyTorch", "",
        f"{report['date']}; batch {p['batch']}, peak rate {p['lr']}, "
        f"{p['warmup_steps']} steps of warm-up, cosine to 0, momentum "
        f"{p['momentum']}, weight decay {p['weight_decay']} on weights, "
        f"{p['train_transform']}. Mean loss of the last quarter of the steps.",
        "", "Versions: " + ", ".join(
            f"{n} {v}" for n, v in report["versions"].items()) + ".", "",
        f"Command: `{report['command']}`", "",
        "| program | seed | layout | mean loss of the last quarter |",
        "|---|---|---|---|"]
    for seed, value in s["torch"].items():
        layout = LAYOUTS[int(seed) % len(LAYOUTS)]
        lines.append(f"| PyTorch | {seed} | {layout} | {value:.4f} |")
    ranks = report["ranks"]
    fusor = "fusor" if ranks == 1 else f"fusor, {ranks} ranks"
    for seed, value in s["fusor"].items():
        lines.append(f"| {fusor} | {seed} | blocked | {value:.4f} |")
    lines += ["", f"fusor's mean {s['mean']:.4f} lies "
              f"{'inside' if s['inside'] else 'OUTSIDE'} PyTorch's "
              f"{s['low']:.4f} to {s['high']:.4f}.", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", help="folder with train/CLASS/*.jpg")
    parser.add_argument("--fusor", required=True, help="the fusor program")
    parser.add_argument("--python", required=True,
                        help="a Python that has PyTorch")
    parser.add_argument("--protocol", choices=protocols.PROTOCOLS,
                        required=True)
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--torch-seeds", type=int, default=5)
    parser.add_argument("--fusor-seeds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=1,
                        help="fusor's, on this host, with a part of the batch "
                        "each")
    parser.add_argument("--torch-from", type=pathlib.Path,
                        help="a report whose PyTorch runs are taken")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=pathlib.Path, required=True,
                        help="writes OUT.json and OUT.md")
    args = parser.parse_args()
    if protocols.PROTOCOLS[args.protocol].batch % args.ranks != 0:
        sys.exit(f"compare_curves: --ranks {args.ranks} does not divide the "
                 "batch")
    torch_runs, fusor_runs, versions = {}, {}, {}
    if args.torch_from is not None:
        torch_runs, versions = stored_runs(args)
    else:
        for seed in range(args.torch_seeds):
            torch_runs[seed], versions = torch_losses(args, seed)
    for seed in range(args.fusor_seeds):
        fusor_runs[seed] = fusor_losses(args, seed)
    protocol = protocols.PROTOCOLS[args.protocol]
    report = {
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(sys.argv), "dtype": args.dtype,
        "ranks": args.ranks,
        "protocol": dataclasses.asdict(protocol), "versions": versions,
        "summary": summarise(torch_runs, fusor_runs),
        "losses": {"torch": torch_runs, "fusor": fusor_runs}}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(f"{args.out}.json").write_text(json.dumps(report) + "\n")
    text = markdown(report)
    pathlib.Path(f"{args.out}.md").write_text(text)
    print(text)
    return 0 if report["summary"]["inside"] else 1


if __name__ == "__main__":
    sys.exit(main())
