#!/usr/bin/env python3
"""Runs the coverage-guided fuzzers and prints a table of their results.

    cmake --preset fuzz && cmake --build build-fuzz
    run_fuzzers.py --seeds build/bin/make_seeds --out OUT build-fuzz/bin/*_fuzzer

Each format has a folder OUT/FORMAT with its seeds, the corpus that grows from
them, a dictionary, a log and the inputs of findings (crash-*, timeout-*,
oom-*). To repeat a finding, run `reader_fuzzer --format=FORMAT FILE`. Exits with
1 if there is a finding.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]

# Limits of the number types that readers parse.
NUMBERS = ["-1", "0", "1", "1e999", "nan", "inf", "1048577", "2147483648",
           "0.5", "4294967296", "-2e-308", "99999999999", "1e18",
           "9223372036854775807", "-9223372036854775808",
           "18446744073709551615"]
# Markers and chunks that single-byte mutations do not find.
MAGIC = {
    "image": ([rf"\xff\x{m:02x}" for m in
               [0xc0, 0xc1, 0xc2, 0xc4, 0xd8, 0xd9, 0xda, 0xdb, 0xdd, 0xd0,
                0xd7, 0xe0, 0xe1, 0xee, 0xfe]]
              + ["IHDR", "IDAT", "IEND", "PLTE", "tRNS", "gAMA", "acTL", "iCCP",
                 "zTXt", "sPLT", "Adobe", "JFIF", "Exif",
                 r"\x89PNG\x0d\x0a\x1a\x0a", "RIFF", "WEBP", "VP8 ", "VP8L",
                 "VP8X", "ALPH", "ANIM", "ANMF", "GIF89a", r"\x21\xf9\x04",
                 "BM", "P5", "P6", "255"]),
    "recordio": [r"\x0a\x23\xd7\xce"],
    "tar": ["ustar", r"\x1f\x8b\x08", "path=", "size="],
    "zip": [r"PK\x01\x02", r"PK\x03\x04", r"PK\x05\x06", r"PK\x06\x06",
            r"PK\x06\x07"],
}
MAX_WORDS = 400
# Maximum bytes of an input. Seeds of these formats are longer than others.
MAX_LENGTH = {"torch-archive": 1 << 18, "torch-program": 1 << 16,
              "onnx": 1 << 16}


def run(command, **options):
    return subprocess.run([str(c) for c in command], check=False, text=True,
                          capture_output=True, errors="replace", **options)


def build(folder, target):
    """Configures and builds one fuzzer. Returns the compiler's last lines on
    failure. Compiling without optimisation takes 60 % of the time, which is
    longer than the tests run the fuzzer."""
    flags = "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 -g1 -D_GLIBCXX_ASSERTIONS"
    for command in (["cmake", "--preset", "fuzz", "-B", folder, flags],
                    ["cmake", "--build", folder, "--target", target,
                     "-j", os.cpu_count()]):
        done = run(command, cwd=ROOT)
        if done.returncode != 0:
            sys.exit("\n".join(done.stdout.splitlines()[-30:]) + done.stderr)


def formats_of(fuzzer):
    """Returns the names that a fuzzer lists if it is given none."""
    text = run([fuzzer]).stderr
    return text.split("there are", 1)[1].split() if "there are" in text else []


def dictionary(format_name, seeds):
    """Writes libFuzzer's dictionary: words of the seeds, numbers, magic
    bytes."""
    words = {}
    for seed in sorted(seeds.iterdir()):
        text = seed.read_bytes().decode("latin-1")
        for word in re.findall(r"[A-Za-z_][A-Za-z0-9_.-]{1,31}", text):
            words[word] = words.get(word, 0) + 1
    common = sorted(words, key=lambda word: (-words[word], word))[:MAX_WORDS]
    entries = common + NUMBERS + MAGIC.get(format_name, [])
    return "".join(f'"{entry}"\n' for entry in entries)


def flag_seeds(program, folder):
    """Makes a seed for each flag of each command from the program's help."""
    commands = re.findall(r"^  ([a-z]+) ", run([program, "--help"]).stdout, re.M)
    for command in commands:
        text = run([program, command, "--help"]).stdout
        flags = sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)))
        for flag in flags:
            (folder / f"{command}{flag}").write_text(f"\n{command}\n{flag}\n1")


def prepare(args, format_name):
    """Prepares seeds and dictionary of a format, and empty folders for the
    rest."""
    folder = args.out / format_name
    for name in ("corpus", "findings"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    seeds = args.out / "seeds" / format_name
    if format_name == "flags" and args.program:
        flag_seeds(args.program, seeds)
    (folder / "dictionary").write_text(dictionary(format_name, seeds))
    return folder, seeds


def fuzz(args, fuzzer, format_name):
    folder, seeds = prepare(args, format_name)
    limit = ([f"-runs={args.runs}"] if args.runs
             else [f"-max_total_time={args.seconds}"])
    with open(folder / "log", "w", encoding="utf-8") as log:
        code = subprocess.run(
            [fuzzer, f"--format={format_name}", *limit, f"-seed={args.seed}",
             f"-dict={folder / 'dictionary'}", "-timeout=10",
             "-rss_limit_mb=2048", "-malloc_limit_mb=512",
             f"-max_len={MAX_LENGTH.get(format_name, 8192)}",
             "-print_final_stats=1", f"-artifact_prefix={folder}/findings/",
             folder / "corpus", seeds],
            check=False, stdout=log, stderr=log,
            stdin=subprocess.DEVNULL).returncode
    return summary(folder, format_name, code)


def summary(folder, format_name, code):
    text = (folder / "log").read_text(encoding="utf-8", errors="replace")

    def last(pattern):
        found = re.findall(pattern, text)
        return int(found[-1]) if found else 0

    return {"format": format_name,
            "executions": last(r"stat::number_of_executed_units: (\d+)"),
            "per_second": last(r"stat::average_exec_per_sec: +(\d+)"),
            "edges": last(r" cov: (\d+)"),
            "features": last(r" ft: (\d+)"),
            "corpus": last(r" corp: (\d+)"),
            "peak_mb": last(r"stat::peak_rss_mb: +(\d+)"),
            "findings": 0 if code == 0 else 1}


def print_row(row):
    print("  ".join(f"{cell:>12}" for cell in row.values()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fuzzers", nargs="*", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, metavar="DIR",
                        help="build reader_fuzzer in DIR, and nothing else")
    parser.add_argument("--seeds", type=pathlib.Path, help="make_seeds")
    parser.add_argument("--program", type=pathlib.Path,
                        help="fusor, for seeds of its flags")
    parser.add_argument("--out", type=pathlib.Path, default="fuzz-out")
    parser.add_argument("--formats", default="", help="comma-separated (all)")
    parser.add_argument("--runs", type=int, default=0, help="of each format")
    parser.add_argument("--seconds", type=int, default=10,
                        help="for each format, without --runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    if args.build:
        build(args.build, "reader_fuzzer")
        return 0
    if not args.seeds or not args.fuzzers:
        parser.error("expected --seeds and fuzzers")
    made = run([args.seeds, args.out / "seeds"])
    if made.returncode != 0:
        sys.exit(made.stderr)
    chosen = set(filter(None, args.formats.split(",")))
    rows = []
    for fuzzer in args.fuzzers:
        for name in formats_of(fuzzer.resolve()):
            if chosen and name not in chosen:
                continue
            rows.append(fuzz(args, fuzzer.resolve(), name))
            if len(rows) == 1:
                print_row({key: key for key in rows[0]})
            print_row(rows[-1])
            if rows[-1]["findings"]:
                log = (args.out / name / "log").read_text(errors="replace")
                print("\n".join(log.splitlines()[-60:]))
    if chosen - {row["format"] for row in rows}:
        sys.exit(f"unknown formats: {sorted(chosen)}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(row["findings"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
