"""How much of the communication runs beside the computation on a slow link.

    sudo python3 overlap.py --fusor build/bin/fusor --out tests/results/overlap

Two ranks, one thread each, in two network namespaces; tc limits the cable
between them. For each rate, round after round:
- compute: both hosts train at the same time, each for itself;
- one bucket: all gradients in one bucket after the backward pass, so that
  nothing overlaps; what its all-reduce takes is the communication alone;
- overlap: --bucket-policy exact with this link;
- sharded: the same with --sharded-optimizer, which sums half of it under the
  backward pass and gathers the other half under the next forward pass.
The target is a step <= max(compute, communication) + 10 %.

Where --cores has "spare", all of it is done again with the computing threads of
both ranks on processor 0 and all their other threads on processor 1: a step
takes twice as long, but communication takes no processor time from it, as on
hosts that have a core to spare.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time

import two_hosts

KINDS = {"one bucket": ["--bucket-policy", "one"],
         "overlap": ["--bucket-policy", "exact"],
         "sharded": ["--bucket-policy", "exact", "--sharded-optimizer"]}


def link_file(path, mbit):
    """Writes the link for the exact policy: TCP has 95 % of the line rate."""
    path.write_text(f"""name: "cable-{mbit}mbit"
node {{ ranks: 256 gb_per_s: 2 }}
network_gb_per_s: {mbit / 8000 * 0.95:.6f}
base_us: 30
node_hop_us: 15
network_hop_us: 50
network_latency_factor: 1
""", encoding="utf-8")


class Watch(threading.Thread):
    """Pins the threads of training processes, and measures the processor time
    of the first process's threads."""

    def __init__(self, processes, log, warmup, spare):
        super().__init__()
        self.processes = processes
        self.log = log
        self.warmup = warmup
        self.spare = spare
        self.placed = set()
        self.samples = []  # steps, {thread: seconds}
        self.start()

    def run(self):
        while any(process.poll() is None for process in self.processes):
            with contextlib.suppress(OSError):
                for process in self.processes:
                    self.place(process.pid)
                self.sample()
            time.sleep(0.05)

    def sample(self):
        """Takes a sample after a step, unless a thread has ended."""
        steps = self.log.read_text().count('"seconds"')
        known = self.samples[-1][0] if self.samples else self.warmup - 1
        if steps <= known:
            return
        seconds = self.seconds(self.processes[0].pid)
        if not self.samples or self.samples[0][1].keys() <= seconds.keys():
            self.samples = [*self.samples[:1], (steps, seconds)]

    @staticmethod
    def threads(process):
        return [int(name) for name in os.listdir(f"/proc/{process}/task")]

    def place(self, process):
        for thread in self.threads(process) if self.spare else []:
            if thread not in self.placed:
                os.sched_setaffinity(thread, {int(thread != process)})
                self.placed.add(thread)

    def seconds(self, process):
        taken = {}
        for thread in self.threads(process):
            path = pathlib.Path(f"/proc/{process}/task/{thread}/schedstat")
            taken[thread] = int(path.read_text().split()[0]) / 1e9
        return taken

    def processor_ms(self):
        """Returns processor ms per step, of the computing thread and of the
        others. Ignores runs that are too short."""
        self.join()
        if len(self.samples) < 2:
            return [0.0, 0.0]
        (begun, first), (ended, last) = self.samples
        own = self.processes[0].pid
        both = [0.0, 0.0]
        for thread, seconds in last.items():
            both[thread != own] += seconds - first.get(thread, 0)
        return [1e3 * seconds / (ended - begun) for seconds in both]


def settle(processes):
    """Returns the outputs. Raises if a process has failed."""
    texts = []
    for process in processes:
        text, errors = process.communicate(timeout=1200)
        if process.returncode != 0:
            raise RuntimeError(errors)
        texts.append(text)
    return texts


class Measurement:
    def __init__(self, arguments, hosts, folder):
        self.arguments = arguments
        self.hosts = hosts
        self.folder = folder
        self.environment = {**os.environ,
                            "FUSOR_CACHE_DIR": str(folder / "cache")}

    def command(self, name, kind, link):
        a = self.arguments
        return [a.fusor, "train", "--synthetic", "--arch", a.arch, "-b",
                a.batch, "--image-size", a.image_size, "--threads", 1,
                "--training-only", "--lr", 0.001, "--iterations",
                a.warmup + a.steps, *KINDS[kind], "--cluster", link,
                "--wire-dtype", a.wire_dtype,
                "--log-jsonl", self.folder / f"{name}.jsonl",
                "--timeline", self.folder / f"{name}.json",
                "--timeline-steps", f"{a.warmup + 1}:{a.warmup + a.steps}"]

    def step_ms(self, name):
        lines = [json.loads(line) for line in
                 (self.folder / f"{name}.jsonl").read_text().splitlines()]
        (self.folder / f"{name}.jsonl").unlink()
        seconds = [line["seconds"] for line in lines if "seconds" in line]
        return 1e3 * statistics.median(seconds[self.arguments.warmup:])

    def timeline(self, name):
        runs = json.loads((self.folder / f"{name}.json").read_text())
        return runs["otherData"]["runs"]

    def watch(self, processes, name, spare):
        return Watch(processes, self.folder / f"{name}.jsonl",
                     self.arguments.warmup, spare)

    def compute(self, link, spare):
        """Returns the mean of both hosts' medians, and processor time, in
        ms."""
        names = ["alone-0", "alone-1"]
        processes = [
            self.hosts.start(host, self.command(name, "one bucket", link),
                             self.environment)
            for host, name in enumerate(names)]
        watch = self.watch(processes, names[0], spare)
        settle(processes)
        return (statistics.mean(self.step_ms(name) for name in names),
                watch.processor_ms()[0])

    def together(self, kind, link, spare):
        command = self.command("together", kind, link)
        processes = self.hosts.start_ranks([command, command],
                                           self.environment)
        watch = self.watch(processes, "together", spare)
        text = settle(processes)[0]
        if "parameters are identical on all 2" not in text:
            raise RuntimeError(text)
        runs = self.timeline("together")
        computing, others = watch.processor_ms()
        return {"step_ms": self.step_ms("together"),
                "computing_processor_ms": computing,
                "other_processor_ms": others,
                "communication_ms": statistics.median(
                    run["communication_ms"] for run in runs),
                "not_overlapped_ms": statistics.median(
                    run["not_overlapped_ms"] for run in runs),
                "collectives": len(runs[0]["collectives"])}

    def round(self, cores, mbit):
        link = self.folder / f"link-{mbit}.textproto"
        link_file(link, mbit)
        self.hosts.limit(mbit)
        spare = cores == "spare"
        compute, processor = self.compute(link, spare)
        return {"compute_ms": compute, "compute_processor_ms": processor,
                **{kind: self.together(kind, link, spare) for kind in KINDS}}


def over_longer_percent(measured, kind):
    """Returns the excess in percent within a round, since the machine's speed
    drifts between rounds."""
    longer = max(measured["compute_ms"],
                 measured["one bucket"]["communication_ms"])
    return 100 * (measured[kind]["step_ms"] / longer - 1)


def row(cores, mbit, rounds):
    """Returns a line of the table with medians over the rounds."""
    def median(value):
        return statistics.median(map(value, rounds))
    compute = median(lambda r: r["compute_ms"])
    communication = median(lambda r: r["one bucket"]["communication_ms"])
    line = {"cores": cores, "mbit": mbit, "compute_ms": compute,
            "compute_processor_ms": median(lambda r: r["compute_processor_ms"]),
            "communication_ms": communication,
            "without_overlap_ms": median(lambda r: r["one bucket"]["step_ms"]),
            "rounds": rounds}
    for kind in ("overlap", "sharded"):
        step = median(lambda r, kind=kind: r[kind]["step_ms"])
        line[kind] = {
            "step_ms": step,
            **{name: median(lambda r, kind=kind, name=name: r[kind][name])
               for name in ("not_overlapped_ms", "computing_processor_ms",
                            "other_processor_ms")},
            "collectives": rounds[0][kind]["collectives"],
            "over_longer_percent": median(
                lambda r, kind=kind: over_longer_percent(r, kind))}
    return line


def table(rows):
    text = ("| cores | Mbit/s | compute, ms | communication, ms | step without "
            "overlap, ms | step with overlap, ms | above the longer of the two "
            "| sharded step, ms | above the longer of the two |\n"
            "|---|---|---|---|---|---|---|---|---|\n")
    for r in rows:
        text += (f"| {r['cores']} | {r['mbit']} | {r['compute_ms']:.0f} | "
                 f"{r['communication_ms']:.0f} | "
                 f"{r['without_overlap_ms']:.0f} |")
        for kind in ("overlap", "sharded"):
            text += (f" {r[kind]['step_ms']:.0f} | "
                     f"{r[kind]['over_longer_percent']:+.1f} % |")
        text += "\n"
    return text


def details(rows):
    """Returns where the time goes. Processor time is per rank."""
    text = ("| cores | Mbit/s | | collectives | not overlapped, ms | processor time "
            "of computation, ms | of computation alone, ms | of "
            "communication, ms |\n|---|---|---|---|---|---|---|---|\n")
    for r in rows:
        for kind in ("overlap", "sharded"):
            k = r[kind]
            text += (f"| {r['cores']} | {r['mbit']} | {kind} | "
                     f"{k['collectives']} | {k['not_overlapped_ms']:.0f} | "
                     f"{k['computing_processor_ms']:.0f} | "
                     f"{r['compute_processor_ms']:.0f} | "
                     f"{k['other_processor_ms']:.0f} |\n")
    return text


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fusor", type=pathlib.Path, required=True)
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--mbit", type=int, nargs="+", default=[1000, 500, 100])
    parser.add_argument("--cores", nargs="+", choices=["shared", "spare"],
                        default=["shared"])
    parser.add_argument("--wire-dtype", default="fp32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", help="writes OUT.json and OUT.md")
    return parser.parse_args()


def main():
    arguments = parse()
    arguments.fusor = arguments.fusor.resolve()
    why_not = two_hosts.missing()
    if why_not:
        sys.exit(f"overlap.py: {why_not}")
    measured = {(cores, mbit): [] for cores in arguments.cores
                for mbit in arguments.mbit}
    with tempfile.TemporaryDirectory() as folder, \
            two_hosts.TwoHosts() as hosts:
        measurement = Measurement(arguments, hosts, pathlib.Path(folder))
        for _ in range(arguments.rounds):
            for (cores, mbit), rounds in measured.items():
                rounds.append(measurement.round(cores, mbit))
                print(json.dumps({"cores": cores, "mbit": mbit, **rounds[-1]}),
                      file=sys.stderr, flush=True)
    rows = [row(*key, rounds) for key, rounds in measured.items()]
    text = f"{table(rows)}\n{details(rows)}"
    print(text)
    if arguments.out:
        settings = {name: value for name, value in vars(arguments).items()
                    if name not in ("fusor", "out")}
        pathlib.Path(f"{arguments.out}.json").write_text(
            json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n",
            encoding="utf-8")
        pathlib.Path(f"{arguments.out}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
