#!/usr/bin/env python3
"""Compares the training speed of fusor and its peers on this CPU.

    compare.py --fusor build/bin/fusor --python torch-venv/bin/python \\
        --floor build/bin/conv_floor --arch resnet50 --batches 8 16 32 \\
        --out resnet50

Each round runs every program once at every batch size, in an order that
rotates from round to round, so that slow periods of the host affect all alike.
Ratios are medians of the ratios of each round. Writes OUT.json (every run) and
OUT.md (tables). Programs: fusor with fusion on and off, PyTorch eager (default
and tuned allocator) and compiled, the convolution-only floor, and with
--skeleton an external program whose output has a line `=> X img/s`.
"""

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import pathlib
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
FUSOR_ARCH = {"resnet50": "resnet50-v1.5", "vgg16": "vgg16"}
TORCH_VARIANTS = {
    "torch default": [],
    "torch tuned": ["--tuned"],
    "torch tuned nchw": ["--tuned", "--layout", "nchw"],
    "torch compile tuned": ["--tuned", "--compile"],
}
SKELETON_ARGUMENTS = {"resnet50": "{batch} f32 blk 1 {iterations}",
                      "vgg16": "{batch} f32 1 {iterations}"}
FUSOR = "fusor"


@dataclasses.dataclass
class Program:
    name: str
    command: object  # batch -> argv
    parse: object  # stdout -> {"images_per_second": ..., ...}


class RunError(Exception):
    pass


def last_json(text):
    """Returns the last JSON object in the output, on one line or indented."""
    decoder = json.JSONDecoder()
    for match in reversed(list(re.finditer(r"^\{", text, re.MULTILINE))):
        try:
            value, _ = decoder.raw_decode(text, match.start())
        except ValueError:
            continue
        if "images_per_second" in value:
            return value
    raise RunError("no JSON object with images_per_second in the output")


def images_per_second_line(text):
    match = re.search(r"=>\s*([0-9.]+)\s*img/s", text)
    if match is None:
        raise RunError("no line `=> X img/s` in the output")
    return {"images_per_second": float(match[1])}


def fusor_program(name, args, extra):
    arch = FUSOR_ARCH[args.arch]
    return Program(name, lambda batch: [
        *shlex.split(args.fusor), "bench", "--arch", arch, "--batch-size",
        str(batch), "--dtype", args.dtype, "--warmup", str(args.warmup),
        "--iterations", str(args.iterations), "--json", "-", *extra], last_json)


def torch_program(name, args, extra=()):
    return Program(name, lambda batch: [
        args.python, str(HERE / "bench_torch.py"), "--arch", args.arch,
        "--batch-size", str(batch), "--image-size", str(args.image_size),
        "--dtype", args.dtype, "--threads", str(args.threads), "--warmup",
        str(args.warmup), "--iterations", str(args.iterations),
        *TORCH_VARIANTS[name], *extra], last_json)


def programs(args):
    out = []
    if args.fusor:
        out.append(fusor_program(FUSOR, args, []))
        out.append(fusor_program("fusor fusion=off", args, ["--fusion=off"]))
    if args.python:
        out += [torch_program(name, args) for name in args.torch]
    if args.floor:
        out.append(Program("convolution floor", lambda batch: [
            args.floor, "--arch", args.arch, "--dtype", args.dtype,
            "--batch-size", str(batch), "--iterations",
            str(args.iterations)], last_json))
    if args.skeleton:
        template = args.skeleton_arguments or SKELETON_ARGUMENTS[args.arch]
        out.append(Program("skeleton", lambda batch: [
            args.skeleton, *template.format(
                batch=batch, iterations=args.iterations).split()],
            images_per_second_line))
    return out


def stolen_ticks():
    """Returns the time stolen by the hypervisor in clock ticks, or None if
    unknown."""
    try:
        with open("/proc/stat", encoding="ascii") as stat:
            return int(stat.readline().split()[8])
    except (OSError, IndexError, ValueError):
        return None


@dataclasses.dataclass
class Execution:
    code: int
    stdout: str
    stderr: str
    peak_rss_bytes: int


def shown(command, args):
    """Returns a command without the paths of this machine."""
    root = str(HERE.parents[2]) + os.sep
    return shlex.join("python3" if word == getattr(args, "python", None)
                      else word.removeprefix(root) for word in command)


def execute(command, environment, timeout):
    """Runs a command to its end. Throws RunError after `timeout` seconds."""
    with (tempfile.TemporaryFile("w+") as stdout,
          tempfile.TemporaryFile("w+") as stderr):
        process = subprocess.Popen(  # pylint: disable=consider-using-with
            command, env=environment, stdout=stdout, stderr=stderr)
        killer = threading.Timer(timeout, process.kill)
        killer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timed_out = not killer.is_alive()
        killer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        if timed_out:
            raise RunError(f"took longer than {timeout} s")
        for stream in (stdout, stderr):
            stream.seek(0)
        return Execution(process.returncode, stdout.read(), stderr.read(),
                         usage.ru_maxrss * 1024)


class LastingPrograms:
    """Programs that stay in memory between rounds, so that each starts and
    compiles once. They measure for each line of their input and print one line.
    Closes them on exit."""

    def __init__(self):
        self._started = {}

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for process, stderr in self._started.values():
            with contextlib.suppress(BrokenPipeError):  # it ended early
                process.stdin.close()
            process.wait()
            process.stdout.close()
            stderr.close()

    def execute(self, command, environment, timeout):
        """Measures once, like the function of this name."""
        key = tuple(command)
        if key not in self._started:
            stderr = tempfile.TemporaryFile("w+")  # pylint: disable=consider-using-with
            self._started[key] = subprocess.Popen(  # pylint: disable=consider-using-with
                command, env=environment, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=stderr, text=True), stderr
        process, stderr = self._started[key]
        killer = threading.Timer(timeout, process.kill)
        killer.start()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write("\n")
            process.stdin.flush()
        line = process.stdout.readline()
        code = 0 if line.endswith("\n") else process.wait()
        timed_out = not killer.is_alive()
        killer.cancel()
        if timed_out:
            raise RunError(f"took longer than {timeout} s")
        stderr.seek(0)
        return Execution(code, line, stderr.read(), 0)


def run(program, batch, args, execute=execute):
    """Runs a measurement. Returns {program, batch, command, images_per_second,
    ...}, or `error` in place of the numbers."""
    command = [str(word) for word in program.command(batch)]
    record = {"program": program.name, "batch": batch,
              "command": shown(command, args)}
    stolen, begin = stolen_ticks(), time.monotonic()
    try:
        # torch.compile would find in its cache what an earlier run compiled.
        with tempfile.TemporaryDirectory() as cache:
            environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads),
                               TORCHINDUCTOR_CACHE_DIR=cache)
            done = execute(command, environment, args.timeout)
        if done.code != 0:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise RunError(f"exit code {done.code}: "
                           f"{last[-1] if last else 'no output'}")
        record["result"] = {"peak_rss_bytes": done.peak_rss_bytes,
                            **program.parse(done.stdout)}
        record["images_per_second"] = record["result"]["images_per_second"]
    except (OSError, RunError) as error:
        record["error"] = str(error)
    record["wall_seconds"] = time.monotonic() - begin
    if stolen is not None:
        record["stolen_ticks"] = stolen_ticks() - stolen
    return record


def measure(table, args):
    """Returns all runs of the programs, round by round."""
    runs = []
    for pair in range(args.pairs):
        for batch in args.batches:
            shift = pair % len(table)
            for program in table[shift:] + table[:shift]:
                record = {"round": pair, **run(program, batch, args)}
                runs.append(record)
                speed = record.get("images_per_second")
                print(f"round {pair} batch {batch} {program.name}: "
                      f"{record.get('error') or f'{speed:.2f} images/s'}",
                      file=sys.stderr, flush=True)
    return runs


def speeds(runs, program, batch):
    """Returns {round: images/s} of the successful runs."""
    return {r["round"]: r["images_per_second"] for r in runs
            if r["program"] == program and r["batch"] == batch
            and "images_per_second" in r}


def ratio(runs, program, other, batch):
    """Returns the median over rounds of program's speed over other's, or None
    if there is none."""
    ours, theirs = speeds(runs, program, batch), speeds(runs, other, batch)
    pairs = [ours[r] / theirs[r] for r in ours if r in theirs]
    return statistics.median(pairs) if pairs else None


def summarise(runs, batches):
    """Returns [{batch, programs: {name: {median, min, max, rounds, errors}},
    best_peer, ratios: {name: fusor's speed over it}}]."""
    names = list(dict.fromkeys(r["program"] for r in runs))
    out = []
    for batch in batches:
        rows = {}
        for name in names:
            found = list(speeds(runs, name, batch).values())
            errors = [r["error"] for r in runs if r["program"] == name
                      and r["batch"] == batch and "error" in r]
            rows[name] = {"rounds": len(found), "errors": errors}
            if found:
                rows[name].update(median=statistics.median(found),
                                  min=min(found), max=max(found))
        peers = [n for n in names
                 if n.startswith("torch") and "median" in rows[n]]
        best = max(peers, key=lambda n: rows[n]["median"], default=None)
        out.append({"batch": batch, "programs": rows, "best_peer": best,
                    "ratios": {n: ratio(runs, FUSOR, n, batch)
                               for n in names if n != FUSOR}})
    return out


def host():
    model, flags = "unknown", []
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "model name":
            model = value
        elif key == "flags":
            flags = value.split()
    thp = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {"cpu": model, "cores": os.cpu_count(),
            "isa": [f for f in flags if f.startswith(("avx", "amx", "fma"))],
            "kernel": platform.release(), "load_at_start": os.getloadavg(),
            "transparent_hugepages":
                thp.read_text().strip() if thp.exists() else "unknown"}


def versions(runs):
    """Returns the versions that the programs report, from the first run of
    each."""
    found = {}
    for record in runs:
        for name, version in record.get("result", {}).get(
                "versions", {}).items():
            found.setdefault(name, version)
    return found


def markdown(report):
    settings, where = report["settings"], report["host"]
    lines = [
        f"# {settings['arch']}, {settings['dtype']}, training step on the CPU",
        "",
        f"{report['date']}; {where['cpu']}, {where['cores']} cores, "
        f"{settings['threads']} threads; {settings['pairs']} interleaved "
        f"rounds, {settings['iterations']} steps each after "
        f"{settings['warmup']} of warm-up; load at start "
        f"{where['load_at_start'][0]:.2f}.",
        "",
        "Versions: " + (", ".join(
            f"{n} {v}" for n, v in report["versions"].items()) or "unknown")
        + ".", "", f"Command: `{report['command']}`", ""]
    for section in report["summary"]:
        lines += [f"## batch {section['batch']}", "",
                  "| program | images/s, median | min | max | rounds |"
                  f" {FUSOR} / it |", "|---|---|---|---|---|---|"]
        for name, row in section["programs"].items():
            value = section["ratios"].get(name)
            against = f"{value:.3f}" if value else ""
            mark = " (best peer)" if name == section["best_peer"] else ""
            if "median" in row:
                lines.append(f"| {name}{mark} | {row['median']:.2f} | "
                             f"{row['min']:.2f} | {row['max']:.2f} | "
                             f"{row['rounds']} | {against} |")
            else:
                lines.append(f"| {name} | failed: {row['errors'][0]} | | | 0 | |")
        lines.append("")
    return "\n".join(lines)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fusor", help="the fusor program")
    parser.add_argument("--python", help="a Python that has PyTorch")
    parser.add_argument("--torch", nargs="*", choices=TORCH_VARIANTS,
                        default=list(TORCH_VARIANTS),
                        help="which PyTorch variants to run")
    parser.add_argument("--floor", help="the conv_floor program")
    parser.add_argument("--skeleton",
                        help="an external program that prints `=> X img/s`")
    parser.add_argument("--skeleton-arguments",
                        help="its arguments, with {batch} and {iterations}")
    parser.add_argument("--arch", default="resnet50", choices=FUSOR_ARCH)
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--pairs", type=int, default=5, help="rounds")
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=float, default=1800,
                        help="seconds for one run")
    parser.add_argument("--out", type=pathlib.Path, required=True,
                        help="writes OUT.json and OUT.md")
    parser.set_defaults(image_size=224)
    args = parser.parse_args()
    if not programs(args):
        parser.error("nothing to run: give --fusor, --python, --floor or "
                     "--skeleton")
    return args


def main():
    args = parse_arguments()
    where = host()
    runs = measure(programs(args), args)
    report = {
        "date": datetime.date.today().isoformat(), "host": where,
        "command": shlex.join(sys.argv), "versions": versions(runs),
        "settings": {k: v for k, v in vars(args).items() if k != "out"},
        "summary": summarise(runs, args.batches), "runs": runs}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(f"{args.out}.json").write_text(json.dumps(report, indent=1))
    text = markdown(report)
    pathlib.Path(f"{args.out}.md").write_text(text)
    print(text)
    return 1 if any("error" in r for r in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
