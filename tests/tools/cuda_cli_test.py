"""Tests commands that launch steps on a GPU with the fake CUDA plug-in
(tests/fakes).

    cuda_cli_test.py FUSOR BACKENDS
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

FUSOR, BACKENDS = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
MODEL = ["--backend", "cuda", "--arch", "resnet20-cifar", "-b", "2",
         "--num-classes", "10", "--image-size", "8", "--kernel-cache", "off"]
STEPS = 8  # warm-up and measured steps


class CudaTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def fusor(self, *args):
        report = self.folder / "report.json"
        done = subprocess.run(
            [FUSOR, *args, "--json", report], capture_output=True, text=True,
            check=False, env=dict(os.environ, FUSOR_BACKEND_DIR=str(BACKENDS),
                                  FUSOR_VERIFY="0"))  # else no capture
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(report.read_text()), done.stdout

    def bench(self, *args):
        report, text = self.fusor(
            "bench", *MODEL, "--warmup", "3", "--iterations", "5",
            "--log-format", "dll", *args)
        losses = re.findall(r"Iteration: (\d+)  train.loss : (\S+)", text)
        self.assertGreater(report["images_per_second"], 0)
        self.assertAlmostEqual(float(losses[-1][1]), report["loss"], places=4)
        return losses

    def test_bench_measures_each_step_of_a_graph(self):
        losses = self.bench()
        self.assertEqual([int(step) for step, _ in losses],
                         list(range(1, STEPS + 1)))
        # 2 single steps, which are part of the warm-up, and 2 graphs of 3.
        self.assertEqual(self.bench("--cuda-graph-steps", "3"), losses)
        self.assertEqual(self.bench("--cuda-graph-steps", "8"), losses)

    def test_each_step_of_a_graph_has_its_own_augmentation(self):
        samples = self.folder / "samples"
        subprocess.run([FUSOR, "data", "make-samples", "--out", samples,
                        "--train-images", "2"], capture_output=True, check=True)

        def losses(*args):
            return self.fusor(
                "train", samples, *MODEL, "--train-transform",
                "random-resized-crop", "--color-jitter", "0.4",
                "--random-erase", "0.5", "--augment-on", "device",
                "--training-only", "--iterations", "5", *args)[0]["losses"]

        self.assertEqual(losses("--cuda-graph-steps", "2"), losses())

    # Among the candidates are convolutions that add to their result in memory.
    def test_bench_tunes(self):
        choices = self.folder / "choices.txt"
        report, _ = self.fusor(
            "bench", *MODEL, "--warmup", "1", "--iterations", "1",
            "--tune", "--choices", choices)
        self.assertGreater(report["images_per_second"], 0)
        self.assertIn("conv2d_grad_input", choices.read_text())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
