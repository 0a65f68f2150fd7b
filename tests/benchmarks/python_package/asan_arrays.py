#!/usr/bin/env python3
"""Runs the tests of arrays with the extension of the Python package built with
AddressSanitizer: DLPack in both directions, strided, read-only and freed arrays.

    python3 asan_arrays.py BUILD

BUILD is a build folder with the Python package. The sources that handle arrays
are instrumented, and all memory is the sanitizer's.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
# GCC warns of values that only the sanitizer's code may leave uninitialised.
FLAGS = ["-fsanitize=address", "-fno-omit-frame-pointer", "-g1", "-O1", "-w"]
SOURCES = ("host_array", "state_arrays", "training_step")
TESTS = ["ArrayTest", "StateTest", "EvaluationTest", "TrainingTest"]


def build_extension(build, folder):
    """Compiles SOURCES of tools/python anew, and links BUILD's extension with
    them in `folder`."""
    objects = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        if path.parent.name != "python" or path.stem not in SOURCES:
            continue
        words = shlex.split(entry["command"])
        if words[0].endswith("ccache"):
            words = words[1:]
        at = words.index("-o") + 1
        made = folder / (path.stem + ".o")
        objects[words[at]] = str(made)
        words[at] = str(made)
        subprocess.run([*words, *FLAGS], cwd=entry["directory"], check=True)
    commands = subprocess.run(
        ["ninja", "-C", build, "-t", "commands", "fusor_python"],
        capture_output=True, text=True, check=True).stdout.splitlines()
    link = next(c for c in reversed(commands) if "-shared" in c)
    link = re.sub(r"^: && | && :.*$", "", link)
    words = [objects.get(word, word) for word in shlex.split(link)]
    at = words.index("-o") + 1
    words[at] = str(folder / "fusor" / pathlib.Path(words[at]).name)
    subprocess.run([*words, *FLAGS], cwd=build, check=True)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(build / "python/fusor", folder / "fusor",
                        ignore=shutil.ignore_patterns("*.so"))
        build_extension(build, folder)
        # The sanitizer looks up the C++ library's functions when it starts.
        runtime = " ".join(
            subprocess.run(["g++", f"-print-file-name={library}"], text=True,
                           capture_output=True, check=True).stdout.strip()
            for library in ("libasan.so", "libstdc++.so"))
        # Python itself leaks at exit.
        environment = dict(os.environ, PYTHONPATH=str(folder),
                           LD_PRELOAD=runtime, PYTHONMALLOC="malloc",
                           ASAN_OPTIONS="detect_leaks=0")
        python = build / "venv/bin/python"
        sys.exit(subprocess.run(
            [python, "-B", ROOT / "tests/tools/python/step_test.py", *TESTS],
            env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
