"""Tests compare_curves.py with fakes of both programs."""

import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import protocols  # noqa: E402

# Arguments: the word that precedes the seed, and where the loss goes.
PROGRAM = """#!{python}
import json, sys
words = sys.argv[1:]
seed = int(words[words.index("--seed") + 1])
losses = [9.0] * 150 + [{first} + {step} * seed] * 50
if "--log-jsonl" in words:
    with open(words[words.index("--log-jsonl") + 1], "w") as log:
        for loss in losses:
            log.write(json.dumps({{"loss": loss}}) + "\\n")
else:
    print(json.dumps({{"losses": losses, "versions": {{"torch": "7"}}}}))
"""


class CompareCurvesTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, name, first, step):
        path = self.folder / name
        path.write_text(PROGRAM.format(python=sys.executable, first=first,
                                       step=step))
        path.chmod(0o755)
        return str(path)

    def compare(self, fusor, torch, *options):
        return subprocess.run(
            [sys.executable, "-B", HERE / "compare_curves.py", "DATA",
             "--fusor", fusor, "--python", torch, "--protocol", "cifar",
             "--out", self.folder / "out", *options],
            capture_output=True, text=True, check=False)

    def test_a_mean_inside_pytorchs_range_passes(self):
        done = self.compare(self.program("fusor", 1.1, 0.1),
                            self.program("torch", 1.0, 0.1))
        self.assertEqual(done.returncode, 0, done.stderr)
        summary = json.loads((self.folder / "out.json").read_text())["summary"]
        self.assertAlmostEqual(summary["low"], 1.0)
        self.assertAlmostEqual(summary["high"], 1.4)
        self.assertAlmostEqual(summary["mean"], 1.2)
        self.assertIn("| PyTorch | 3 | channels_last | 1.3000 |", done.stdout)

    def test_a_mean_outside_fails_and_is_still_written(self):
        done = self.compare(self.program("fusor", 1.5, 0.0),
                            self.program("torch", 1.0, 0.1))
        self.assertEqual(done.returncode, 1)
        self.assertIn("OUTSIDE PyTorch's 1.0000 to 1.4000", done.stdout)
        self.assertTrue((self.folder / "out.md").exists())

    def test_ranks_share_the_batch_and_runs_are_taken_over(self):
        torch = self.program("torch", 1.0, 0.1)
        self.compare(self.program("fusor", 1.2, 0.0), torch)
        first = (self.folder / "out.json").rename(self.folder / "first.json")
        program = pathlib.Path(self.program("fusor", 1.3, 0.0))
        program.write_text(program.read_text().replace(
            "losses = ", """assert words[:4] == ["launch", "--nproc-per-node",
                             "4", "--"]
assert words[words.index("-b") + 1] == "32"
losses = """))
        done = self.compare(str(program), "no such python", "--ranks", "4",
                            "--torch-from", first)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| PyTorch | 3 | channels_last | 1.3000 |", done.stdout)
        self.assertIn("| fusor, 4 ranks | 0 | blocked | 1.3000 |", done.stdout)
        done = self.compare(str(program), torch, "--torch-from", first,
                            "--dtype", "bf16")
        self.assertIn("of another protocol or dtype", done.stderr)
        done = self.compare(str(program), torch, "--ranks", "3")
        self.assertIn("--ranks 3 does not divide the batch", done.stderr)

    def test_a_failing_program_is_named(self):
        bad = self.folder / "bad"
        bad.write_text("#!/bin/sh\necho 'no images' >&2\nexit 4\n")
        bad.chmod(0o755)
        done = self.compare(str(bad), self.program("torch", 1.0, 0.1))
        self.assertEqual(done.returncode, 1)
        self.assertIn("bad ended with 4: no images", done.stderr)

    def test_the_schedule_warms_up_and_ends_near_zero(self):
        p = protocols.PROTOCOLS["imagenet"]
        self.assertAlmostEqual(p.rate(0), p.lr / p.warmup_steps)
        self.assertAlmostEqual(p.rate(p.warmup_steps - 1), p.lr)
        middle = (p.steps + p.warmup_steps) // 2
        self.assertAlmostEqual(p.rate(middle), p.lr / 2)
        self.assertTrue(math.isclose(p.rate(p.steps), 0.0, abs_tol=1e-12))


if __name__ == "__main__":
    unittest.main()
