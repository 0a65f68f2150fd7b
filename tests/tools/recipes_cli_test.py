"""Runs every command of RECIPES.md, scaled down: recipes_cli_test.py FUSOR."""

import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

FUSOR = pathlib.Path(sys.argv.pop(1)).resolve()
PAGE = pathlib.Path(__file__).resolve().parents[2] / "tools/fusor/RECIPES.md"

# Flags that make a run small. The last value of a flag takes precedence.
SMALL = ["-b", "4", "--image-size", "32", "--prof", "2", "--arch", "resnet18"]


def commands():
    """Yields (words, the line "recipe ..." that the document shows, or "")."""
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL):
        lines = block.splitlines()
        for line, after in zip(lines, [*lines[1:], ""]):
            if not line.startswith("recipe "):
                yield shlex.split(line), after if after.startswith(
                    "recipe ") else ""


def small(words, samples):
    records = any("--rec-train" in word for word in words)
    data = str(samples.parent / "recordio" if records else samples)
    words = [word.replace("DATA", data) for word in words]
    if "--nproc_per_node" in words:
        words[words.index("--nproc_per_node") + 1] = "2"
        words = [word for word in words if "master_port" not in word]
    if "--optimizer-batch-size" in words:
        words[words.index("--optimizer-batch-size") + 1] = "8"
    return words + SMALL


class RecipesTest(unittest.TestCase):

    def test_every_command_runs(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            samples = folder / "samples"
            subprocess.run([FUSOR, "data", "make-samples", "--out", samples,
                            "--train-images", "4", "--val-images", "1"],
                           check=True, capture_output=True)
            # For the scripts of TensorFlow and MXNet.
            for form in "tfrecord", "recordio":
                subprocess.run([FUSOR, "data", "convert", samples,
                                folder / form, "--format", form],
                               check=True, capture_output=True)
            (folder / "tfrecord").rename(samples / "tfrecords")
            known = list(commands())
            self.assertGreaterEqual(len(known), 14)
            for number, (words, recipe) in enumerate(known):
                with self.subTest(command=shlex.join(words)):
                    self.assertEqual(words[0], "fusor")
                    place = folder / str(number)
                    place.mkdir()
                    result = subprocess.run(
                        [FUSOR, *small(words[1:], samples)],
                        cwd=place, text=True, capture_output=True, timeout=300,
                        check=False)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertEqual(result.stderr, "")
                    self.assertRegex(result.stdout, r"\ntrained   2 steps in ")
                    shown = re.findall("^recipe .*", result.stdout, re.M)
                    shown = [line.replace(str(samples), "DATA").replace(
                        str(folder / "recordio"), "DATA").replace(
                        " " + " ".join(SMALL), "") for line in shown]
                    self.assertEqual(shown, [recipe] if recipe else [])


if __name__ == "__main__":
    unittest.main()
