"""Tests models in files with every command that takes a model:
module_cli_test.py FUSOR."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from kernel_cache import kernel_cache
from noise_images import make_images

FUSOR = pathlib.Path(sys.argv.pop(1)).resolve()
USAGE, GRAPH = 2, 3

SIZE = ("-a", "resnet20-cifar", "-b", "4", "--num-classes", "5")

# A module without images and labels.
PLAIN = """graph plain {
  %x = data : f32[64,32]
  %w = weight {init="normal", std=0.2} : f32[128,32]
  %z = matmul(%x, %w) {transpose_b=true} : f32[64,128]
  %q = mul(%z, %z) : f32[64,128]
  %loss = reduce(%q) {dims=[0,1], kind="sum"} : f32[]
  return %loss as "loss"
}
"""


class ModuleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = pathlib.Path(folder.name)
        make_images(cls.root / "images")
        cls.images = cls.root / "images"
        cls.train_module = cls.root / "train.txt"
        cls.eval_module = cls.root / "eval.txt"
        for path, phase in (cls.train_module, "train"), (cls.eval_module,
                                                         "eval"):
            path.write_text(cls.call("dump", *SIZE, "--phase", phase, "--emit",
                                     "graph"))
        cls.plain = cls.root / "plain.txt"
        cls.plain.write_text(PLAIN)

    @classmethod
    def run_fusor(cls, *args):
        return subprocess.run(
            [FUSOR, *map(str, args)], capture_output=True, text=True,
            check=False,
            env=dict(os.environ, FUSOR_CACHE_DIR=str(kernel_cache(FUSOR.parents[1]))))

    @classmethod
    def call(cls, *args):
        result = cls.run_fusor(*args)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def json_of(self, *args):
        return json.loads(self.call(*args, "--threads", "1", "--json", "-"))

    def fails(self, code, words, *args):
        result = self.run_fusor(*args)
        self.assertEqual(result.returncode, code, result.stderr)
        line, = result.stderr.splitlines()
        for word in words:
            self.assertIn(word, line)

    def test_trains_as_the_model_that_it_was_dumped_of(self):
        run = (self.images, "--iterations", "3", "--lr", "0.05",
               "--train-transform", "pad-crop", "--training-only")
        own = self.json_of("train", *SIZE, *run)
        work = self.root / "work"
        module = self.json_of("train", "--module", self.train_module, *run,
                              "--workspace", work)
        self.assertEqual(module["arch"], "module:resnet20_cifar")
        for key in "losses", "state_hash", "parameter_hash":
            self.assertEqual(module[key], own[key], key)
        step = self.root / "step.fusor"
        self.call("compile", "--module", self.train_module, "--threads", "1",
                  "-o", step)
        ran = json.loads(self.call("run", step, *run, "--json", "-"))
        self.assertEqual(ran["losses"], own["losses"])
        # Another module evaluates the weights.
        weights = ("--weights", work / "model.safetensors")
        evaluation = ("eval", self.images, "--val-transform", "exact")
        reports = [self.json_of(*evaluation, *weights, *model) for model in (
            ("--module", self.eval_module), SIZE)]
        for key in "loss", "top1", "top5":
            self.assertEqual(reports[0][key], reports[1][key], key)
        self.assertIn("val       none: the module has no evaluation",
                      self.call("train", "--module", self.train_module,
                                self.images, "--iterations", "1",
                                "--train-transform", "pad-crop"))

    def test_every_command_takes_a_module(self):
        for command, key in (
                (("plan",), "steps"), (("compile",), "passes"),
                (("dump",), "kernels"), (("isolate",), "steps"),
                (("scale", "--nodes", "2"), "speedup"),
                (("compare", "--rounds", "0"), "variants"),
                (("bench", "--warmup", "0", "--iterations", "1"), "step_ms")):
            for module in self.train_module, self.plain:
                with self.subTest(command[0], module=module.name):
                    args = ["--threads", "1"] * (command[0] != "scale")
                    report = json.loads(self.call(
                        *command, "--module", module, *args, "--json", "-"))
                    self.assertTrue(report)
        self.call("bisect", "--module", self.plain, "--out",
                  self.root / "bug")

    def test_mistakes_are_the_same_everywhere(self):
        bad = self.root / "bad.txt"
        bad.write_text(PLAIN.replace(" mul(", " mull("))
        for command in ("train", "bench", "eval", "predict", "plan", "compile",
                        "dump", "compare", "isolate", "bisect", "scale"):
            with self.subTest(command):
                module = (command, *["x"] * (command == "predict"), "--module")
                self.fails(GRAPH, [f"{bad}:5:", "mull"], *module, bad)
                self.fails(USAGE, ["No such file"], *module,
                           self.root / "none")
                self.fails(USAGE, ["--module and --batch-size: expected one "
                                   "of them"], *module, self.plain, "-b", "4")

    def test_what_a_command_cannot_feed_is_named(self):
        self.fails(GRAPH, [f"{self.plain}: expected one data input of images"],
                   "train", "--module", self.plain, "--synthetic")
        self.fails(GRAPH, ["module:resnet20_cifar: expected output \"loss\""],
                   "train", "--module", self.eval_module, "--synthetic")
        self.fails(GRAPH, ["module:resnet20_cifar: expected outputs"], "eval",
                   "--module", self.train_module, self.images, "--weights",
                   self.write_weights())

    def write_weights(self):
        work = self.root / "weights"
        if not work.exists():
            self.call("train", *SIZE, "--synthetic", "--iterations", "1",
                      "--workspace", work)
        return work / "model.safetensors"


if __name__ == "__main__":
    unittest.main()
