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

# Flags that make a run small. They replace flags that are given already.
SMALL = {"-b": "4", "--image-size": "48", "--prof": "2"}


def commands():
    for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for line in block.splitlines():
            yield shlex.split(line)


def small(words, samples):
    words = [str(samples) if word == "DATA" else word for word in words]
    for flag, value in SMALL.items():
        if flag in words:
            words[words.index(flag) + 1] = value
        else:
            words += [flag, value]
    if "--optimizer-batch-size" in words:
        words[words.index("--optimizer-batch-size") + 1] = "8"
    if "vgg16" in words:  # its checkpoints have gigabytes
        words.append("--no-checkpoints")
    return words


class RecipesTest(unittest.TestCase):

    def test_every_command_runs(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            subprocess.run([FUSOR, "data", "make-samples", "--out",
                            folder / "samples", "--train-images", "4",
                            "--val-images", "1"], check=True,
                           capture_output=True)
            known = list(commands())
            self.assertGreaterEqual(len(known), 9)
            for number, words in enumerate(known):
                with self.subTest(command=shlex.join(words)):
                    self.assertEqual(words[:2], ["build/bin/fusor", "train"])
                    place = folder / str(number)
                    place.mkdir()
                    result = subprocess.run(
                        [FUSOR, *small(words[1:], folder / "samples")],
                        cwd=place, text=True, capture_output=True, timeout=300,
                        check=False)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertEqual(result.stderr, "")
                    self.assertRegex(result.stdout, r"\ntrained   2 steps in ")


if __name__ == "__main__":
    unittest.main()
