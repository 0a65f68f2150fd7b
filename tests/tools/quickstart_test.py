"""Tests tools/quickstart.sh with fakes of the set-up and the programs: the
data and options that it trains with."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class QuickstartTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.samples = self.root / "build/samples"
        (self.root / "tools").mkdir()
        (self.root / "build/bin").mkdir(parents=True)
        shutil.copy(ROOT / "tools/quickstart.sh", self.root / "tools")
        self.fake("tools/setup.sh", "")
        self.fake("build/bin/fusor", f"mkdir -p {self.samples}\n")
        self.fake("build/bin/rn50", "")
        (self.root / "bin").mkdir()
        self.fake("bin/nvidia-smi", "exit 9")  # its exit code without a GPU

    def fake(self, path, body):
        file = self.root / path
        file.write_text(
            f'#!/bin/bash\necho "{file.name} $*" >>"$CALLS"\n{body}')
        file.chmod(0o755)

    def quickstart(self, *arguments):
        calls = self.root / "calls"
        calls.write_text("")
        result = subprocess.run(
            ["bash", self.root / "tools/quickstart.sh", *arguments],
            env=dict(os.environ, CALLS=str(calls),
                     PATH=f"{self.root}/bin:{os.environ['PATH']}"),
            cwd=self.root, capture_output=True, text=True, check=False)
        self.calls = [line for line in calls.read_text().splitlines()
                      if not line.startswith("nvidia-smi")]
        self.stderr = result.stderr
        return result.returncode

    def test_samples_are_made_once_and_trained_on(self):
        self.assertEqual(self.quickstart(), 0)
        self.assertEqual(self.calls[0], "setup.sh programs")
        self.assertEqual(self.calls[1],
                         f"fusor data make-samples --out {self.samples}")
        self.assertTrue(self.calls[2].startswith(f"rn50 {self.samples} "))
        self.assertEqual(self.quickstart(), 0)
        self.assertEqual(
            [c.split()[0] for c in self.calls], ["setup.sh", "rn50"])

    def test_a_given_folder_and_given_options_replace_the_defaults(self):
        self.assertEqual(
            self.quickstart("my pictures", "-b", "16", "--seed", "7"), 0)
        self.assertEqual(len(self.calls), 2)
        self.assertTrue(self.calls[1].startswith(
            "rn50 my pictures -b 16 --seed 7 "))
        self.assertEqual(self.calls[1].split().count("-b"), 1)

    def test_options_alone_keep_the_samples(self):
        self.assertEqual(self.quickstart("--iterations=5"), 0)
        self.assertTrue(self.calls[-1].startswith(
            f"rn50 {self.samples} --iterations=5 "))
        self.assertNotIn("--iterations", self.calls[-1].split())

    def test_cuda_is_built_when_asked_for(self):
        self.assertEqual(self.quickstart("--cuda", "pictures", "-b", "4"), 0)
        self.assertEqual(self.calls[0], "setup.sh --cuda programs")
        self.assertTrue(self.calls[1].startswith("rn50 pictures -b 4 "))
        self.assertNotIn("--backend", self.calls[1])
        self.assertIn("no GPU here: the CPU trains", self.stderr)

    def test_a_gpu_trains_unasked(self):
        self.fake("bin/nvidia-smi", "echo 'GPU 0: NVIDIA H200 (UUID: ..)'")
        self.assertEqual(self.quickstart("pictures"), 0)
        self.assertEqual(self.calls[0], "setup.sh --cuda programs")
        self.assertIn(" --backend cuda ", self.calls[1])
        self.assertEqual(self.quickstart("pictures", "--backend=cpu"), 0)
        self.assertNotIn("--backend cuda", self.calls[1])
        self.assertEqual(self.quickstart("--no-cuda", "pictures"), 0)
        self.assertEqual(self.calls[0], "setup.sh programs")
        self.assertNotIn("--backend", self.calls[1])

    def test_failing_setup_stops_everything(self):
        self.fake("tools/setup.sh", "exit 1")
        self.assertEqual(self.quickstart(), 1)
        self.assertEqual(self.calls, ["setup.sh programs"])


if __name__ == "__main__":
    unittest.main()
