#!/usr/bin/env python3
"""Compares the choice of `fusor bench --auto` with the best of all choices.

    auto_choice.py --fusor build/bin/fusor [--arch resnet18] [--image-size 64]
        [--budget 60] [--batches 4,8,...] [--rounds 3]

Runs `bench --auto`, then measures every combination of precision, Winograd,
fusion and batch size, the fastest ones again in turn, also with tuned
algorithms. Prints a table and the speed of the choice as a share of the best
one's. A speed is that of the fastest step in all rounds, because other programs
only slow it down.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import tempfile

# Choices this much slower than the best one in the first round are not measured
# again.
CLOSE = 1.15
SECONDS = 2  # of steps in a measurement


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True,
                          text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return done.stdout


class Bench:
    def __init__(self, fusor, arch, image_size, folder):
        self.model = ["-a", arch, "--image-size", image_size]
        self.fusor = fusor
        self.folder = folder

    def measure(self, flags, seconds_per_step=None):
        """Returns images per second."""
        steps = 3 if seconds_per_step is None else max(
            3, min(50, round(SECONDS / seconds_per_step)))
        out = self.folder / "bench.json"
        run(self.fusor, "bench", *self.model, *flags, "--warmup", 1,
            "--iterations", steps, "--json", out)
        report = json.loads(out.read_text())
        steps_ms = report["step_ms"]
        return (report["images_per_second"] * steps_ms["median"]
                / steps_ms["min"])

    def choose(self, budget):
        """Returns the report of --auto, the flags of its choice, its text."""
        choices, out = self.folder / "auto.choices", self.folder / "auto.json"
        text = run(self.fusor, "bench", *self.model, "--auto", "--auto-budget",
                   budget, "--choices", choices, "--json", out)
        return json.loads(out.read_text()), ["--choices", choices], text

    def tuned(self, flags):
        """Returns the flags with tuned algorithms."""
        file = self.folder / (
            "-".join(str(f).strip("-") for f in flags) + ".choices")
        run(self.fusor, "bench", *self.model, *flags, "--tune", "--choices",
            file, "--warmup", 0, "--iterations", 1)
        return [*flags, "--choices", file]


def survey(bench, budget, batches, rounds):
    """Returns the speeds by name, and the names that were measured again."""
    report, chosen, text = bench.choose(budget)
    print(text, end="", flush=True)
    flags = {"--auto": chosen}
    batch_of = {"--auto": int(report["settings"].get("--batch-size", 32))}
    # Not all machines have Winograd convolutions.
    winograd = [[], ["--winograd", "off"]]

    def add(name, words, batch):
        flags[name], batch_of[name] = words, batch

    for precision, algorithm, fusion, batch in itertools.product(
            ([], ["--amp"]), winograd[:1 + ("winograd" in report["trials"][0])],
            ("on", "off"), batches):
        words = [*precision, *algorithm, "--fusion", fusion, "-b", batch]
        add(" ".join(str(w) for w in words), words, batch)
    speeds = {name: bench.measure(words) for name, words in flags.items()}
    fastest = max(speeds.values())
    repeated = {"--auto": speeds["--auto"]}
    for name in [n for n in flags if speeds[n] * CLOSE >= fastest]:
        repeated[name] = speeds[name]
        if name != "--auto":
            add(f"{name}, tuned", bench.tuned(flags[name]), batch_of[name])
            repeated[f"{name}, tuned"] = speeds[name]
            speeds[f"{name}, tuned"] = 0
    for _ in range(rounds):
        for name, speed in repeated.items():
            again = bench.measure(flags[name], batch_of[name] / speed)
            speeds[name] = max(speeds[name], again)
    return speeds, set(repeated)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fusor", required=True, type=pathlib.Path)
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--budget", type=int, default=60)
    parser.add_argument("--batches", default="4,8,16,32,64,128,256,512")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args.fusor, args.arch, args.image_size,
                      pathlib.Path(folder))
        speeds, repeated = survey(
            bench, args.budget, [int(b) for b in args.batches.split(",")],
            args.rounds)
    print(f"\n{args.arch}, {args.image_size} px: images/s of {len(speeds)} "
          "choices")
    for name in sorted(speeds, key=lambda n: -speeds[n]):
        print(f"{speeds[name]:9.2f}  {name}"
              + ("" if name in repeated else "  (one round)"))
    best = max(speed for name, speed in speeds.items() if name != "--auto")
    print(f"--auto reaches {speeds['--auto'] / best:.3f} of the best choice")


if __name__ == "__main__":
    main()
