#!/usr/bin/env python3
"""Compares the input rate of one core between fusor's data formats and
torchvision, tf.data, DALI and FFCV, on the same images. Programs are
interleaved.

    input_rates.py --bin build/bin [--data DATA/train] [--rounds 5]
        [--python VENV/bin/python ...] [--images 500] [--out RESULTS]

--data is an image folder without train and val; samples are made if it is left
out. A peer that is not installed is left out. Writes RESULTS.json and prints a
table: the median over rounds, and the median ratio to the image folder in the
same round.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
# Name: arguments of `fusor data convert`.
CONVERTED = {
    "TFRecord": ["tfrecord"], "RecordIO": ["recordio"],
    "WebDataset": ["webdataset"],
    "JPEG shards": ["jpeg"],
    "JPEG shards, 256": ["jpeg", "--size", "256"],
    "raw shards, 256": ["pixels", "--size", "256"],
}
REFERENCE = "image folder"
# Loader of peer_rate.py: name, and the module that it needs.
PEERS = {"pil": ("torchvision, PIL", "torchvision"),
         "torchvision": ("torchvision's decoder", "torchvision"),
         "tf.data": ("tf.data", "tensorflow"),
         "dali": ("DALI, CPU", "nvidia.dali"), "ffcv": ("FFCV", "ffcv")}


def run(*command):
    return subprocess.run([str(c) for c in command], check=True,
                          capture_output=True, text=True).stdout


def make_sets(binaries, data, folder):
    """Returns a path for each format."""
    sets = {REFERENCE: data}
    for name, (form, *more) in CONVERTED.items():
        sets[name] = folder / name.replace(" ", "-")
        run(binaries / "fusor", "data", "convert", data, sets[name], "--format",
            form, *more)
    sets["zip"] = folder / "set.zip"
    with zipfile.ZipFile(sets["zip"], "w") as archive:
        for path in sorted(data.rglob("*")):
            archive.write(path, path.relative_to(data))
    return sets


def programs_of(args, sets):
    """Returns a command for each program."""
    rate = args.bin / "input_rate"
    programs = {name: [rate, path] for name, path in sets.items()}
    for name in REFERENCE, "raw shards, 256":
        for place in "host", "device":
            programs[f"{name}, augmented on the {place}"] = [
                rate, sets[name], "--augment", place]
    for loader, (name, module) in PEERS.items():
        for python in args.python:
            if subprocess.run([python, "-c", f"import {module}"], check=False,
                              capture_output=True).returncode == 0:
                programs[name] = [python, HERE / "peer_rate.py", args.data,
                                  "--loader", loader]
                break
    return programs


def measure(programs, rounds, images):
    """Returns the rates of each program, one per round. A program that fails is
    left out."""
    rates = {}
    for number in range(rounds):
        names = list(programs)
        # Each round starts with another program.
        for name in names[number % len(names):] + names[:number % len(names)]:
            if number > 0 and name not in rates:
                continue
            try:
                text = run(*programs[name], "--images", images)
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"{name}: left out: "
                      f"{getattr(error, 'stderr', error)}"[:300],
                      file=sys.stderr)
                rates.pop(name, None)
                programs = {key: value for key, value in programs.items()
                            if key != name}
                continue
            result = json.loads(text.splitlines()[-1])
            rates.setdefault(name, []).append(result["images_per_second"])
    return rates


def table(rates):
    """Returns rows of name, images per second and ratio to the folder."""
    rows = []
    for name, own in rates.items():
        ratios = [a / b for a, b in zip(own, rates[REFERENCE])]
        rows.append({"program": name,
                     "images_per_second": statistics.median(own),
                     "ratio": statistics.median(ratios)})
    return sorted(rows, key=lambda row: row["images_per_second"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True,
                        help="folder of fusor and input_rate")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--python", nargs="*", default=[],
                        help="interpreters that have peers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if args.data is None:
            run(args.bin / "fusor", "data", "make-samples", "--out",
                folder / "samples", "--train-images", "40")
            args.data = folder / "samples" / "train"
        sets = make_sets(args.bin, args.data, folder)
        rates = measure(programs_of(args, sets), args.rounds, args.images)
    rows = table(rates)
    print("| program | images/s per core | to the folder |\n|---|---|---|")
    for row in rows:
        print(f"| {row['program']} | {row['images_per_second']:.0f} | "
              f"{row['ratio']:.2f} |")
    if args.out:
        args.out.with_suffix(".json").write_text(
            json.dumps({"rates": rates, "table": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
