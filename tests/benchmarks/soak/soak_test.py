#!/usr/bin/env python3
"""Tests a short round of soak.py under faults, and the damage to files.

    soak_test.py FUSOR
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tools")]

import noise_images  # noqa: E402
import soak  # noqa: E402

FUSOR = pathlib.Path(sys.argv.pop(1)).resolve()


class SoakTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def test_a_round_under_kills_ends_with_equal_weights(self):
        noise_images.make_images(self.root / "data", train=16)
        out = self.root / "out.json"
        done = subprocess.run(
            [sys.executable, "-B", HERE / "soak.py", self.root / "data",
             "--fusor", FUSOR, "--hours", "0", "--steps", "12", "--seed", "1",
             "--faults", "kill,damage", "--json", out],
            capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("weights equal", done.stdout)
        result = json.loads(out.read_text())
        self.assertEqual(result["rounds"], 1)
        self.assertEqual(result["failures"], [])
        self.assertGreaterEqual(sum(result["faults"].values()), 1)

    def test_damage_changes_the_newest_checkpoint_alone(self):
        for step in 10, 20:
            folder = self.root / f"checkpoints/step-{step:08}"
            folder.mkdir(parents=True)
            (folder / "model.safetensors").write_bytes(bytes(100))
        for seed in range(8):
            newest = self.root / "checkpoints/step-00000020/model.safetensors"
            newest.write_bytes(bytes(100))
            name = soak.damage_newest(self.root, random.Random(seed))
            self.assertEqual(name, "model.safetensors")
            self.assertNotEqual(newest.read_bytes(), bytes(100))
        older = self.root / "checkpoints/step-00000010/model.safetensors"
        self.assertEqual(older.read_bytes(), bytes(100))

    def test_growth_is_from_the_middle_to_the_end(self):
        run = soak.Run.__new__(soak.Run)
        run.samples = {1: [(50 + i, 9) for i in range(30)],
                       2: [(500, 9)] * 29}  # too few samples
        self.assertEqual(run.growth(), (10, 0))


if __name__ == "__main__":
    unittest.main()
