#!/usr/bin/env python3
"""Tests program files from the command line: program_file_cli_test.py FUSOR."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from kernel_cache import kernel_cache
from noise_images import make_images
from small_network import NETWORK

FUSOR = pathlib.Path(sys.argv.pop(1)).resolve()
USAGE, GRAPH, DEVICE = 2, 3, 6

MODEL = ("-a", NETWORK, "-b", "4", "--threads", "1")
# These must be equal however a step was made.
BITS = ("losses", "loss_hash", "state_hash", "parameter_hash")


class ProgramFileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.shared = pathlib.Path(folder.name)
        cls.images = cls.shared / "images"
        make_images(cls.images)
        cls.step = cls.compiled("step", *MODEL, "--num-classes", 5)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

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

    @classmethod
    def json_of(cls, *args):
        return json.loads(cls.call(*args, "--json", "-"))

    @classmethod
    def compiled(cls, name, *args):
        path = cls.shared / f"{name}.fusor"
        cls.call("compile", *args, "-o", path)
        return path

    def fails(self, code, text, *args):
        result = self.run_fusor(*args)
        self.assertEqual(result.returncode, code, result.stderr)
        line, = result.stderr.splitlines()
        self.assertIn(text, line)

    def assert_same_bits(self, a, b):
        for key in BITS:
            self.assertEqual(a[key], b[key], key)

    def test_trains_and_evaluates_as_train_does(self):
        length = (self.images, "--epochs", "2", "--lr", "0.05", "--seed", "3")
        trained = self.json_of("train", *MODEL, *length)
        ran = self.json_of("run", self.step, *length)
        self.assert_same_bits(ran, trained)
        self.assertEqual(ran["steps"], 10)
        for key in "top1", "top5", "evaluations", "kernels", "fusions":
            self.assertEqual(ran[key], trained[key], key)
        self.assertEqual(set(ran["compile_seconds"]),
                         {"load", "generate code", "total"})
        # Machine code comes from this user's cache.
        self.assertEqual(ran["kernel_cache"]["misses"], 0)

    def test_takes_flags_of_the_run_alone(self):
        length = ("--synthetic", "--iterations", "2")
        self.assert_same_bits(
            self.json_of("run", self.step, *length, "--cuda-graph", "off",
                         "--comm-timeout", "60", "--deterministic"),
            self.json_of("train", *MODEL, "--num-classes", 5, *length))
        two = self.compiled("apart", *MODEL, "--world-size", 2)
        result = self.run_fusor("launch", "--nproc-per-node", 2, "--", "run",
                                two, *length, "--interface", "no-interface")
        self.assertEqual(result.returncode, USAGE, result.stderr)
        self.assertIn("no-interface", result.stderr)

    def test_keeps_the_options_it_was_compiled_with(self):
        options = (*MODEL, "--amp", "--mean", "120,121,122", "--nesterov",
                   "--label-smoothing", "0.1", "--mixup", "0.2",
                   "--cutmix-alpha", "1", "--mixup-switch-prob", "0.4",
                   "--dynamic-loss-scale", "--ema-decay", "0.9",
                   "--optimizer-batch-size", "8", "--amp-deny", "add",
                   "--fusion", "off")
        step = self.compiled("options", *options)
        length = ("--synthetic", "--iterations", "3")
        self.assert_same_bits(self.json_of("run", step, *length),
                              self.json_of("train", *options, *length))

    def test_resumes_from_checkpoints_of_train(self):
        whole = self.json_of("train", *MODEL, self.images, "--epochs", "2")
        work = ("--workspace", self.folder / "w", "--resume", "auto")
        self.call("train", *MODEL, self.images, "--epochs", "2", *work,
                  "--prof", "4")
        ran = self.json_of("run", self.step, self.images, "--epochs", "2",
                           *work)
        self.assertEqual(ran["steps"], 6)
        self.assertEqual(ran["loss_hash"], whole["loss_hash"])
        self.assertEqual(ran["state_hash"], whole["state_hash"])

    def test_takes_no_flags_that_are_decided(self):
        for flag in "--amp", "--arch=resnet18", "--dump-to=x", "--wd=0":
            self.fails(USAGE, "unknown flag of run", "run", self.step, flag)

    def test_names_what_is_not_a_program_file(self):
        whole = self.step.read_bytes()
        path = self.folder / "s.fusor"
        for content, text in ((b"", "not a program file"),
                              (b"PK\3\4", "not a program file"),
                              (whole[:-1], "cut or damaged: expected"),
                              (whole[:100] + b"!" + whole[101:],
                               "damaged: expected CRC-32C")):
            path.write_bytes(content)
            self.fails(GRAPH, text, "run", path, "--synthetic")
        self.fails(USAGE, "No such file", "run", self.folder / "none")
        self.fails(USAGE, "at least the 5 classes of the data", "run",
                   self.compiled("two", *MODEL, "--num-classes", 2),
                   self.images)

    def test_rejects_programs_of_another_device(self):
        here = json.loads(self.call("compile", *MODEL, "--json", "-"))["target"]
        other = "cpu-avx2" if here != "cpu-avx2" else "cpu-avx512"
        step = self.compiled("other", *MODEL, "--target", other)
        length = ("--synthetic", "--iterations", "2")
        self.fails(DEVICE, f"compiled for target {other}, this machine has {here}; use "
                   "--recompile", "run", step, *length)
        again = self.json_of("run", step, "--recompile", *length)
        self.assert_same_bits(
            again, self.json_of("train", *MODEL[:-2], *length))

    def test_reports_a_missing_gpu(self):
        doctor = self.call("doctor")
        if "cuda" not in doctor:
            self.skipTest("backend cuda is not built")
        result = self.run_fusor("compile", *MODEL[:-2], "--amp", "--target",
                                "nvidia-h200", "-o", self.folder / "g.fusor")
        if result.returncode == DEVICE:
            self.skipTest(result.stderr)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.fails(DEVICE, "compiled for nvidia-h200", "run",
                   self.folder / "g.fusor", "--synthetic")

    def test_runs_on_the_ranks_it_was_compiled_for(self):
        ranks = ("launch", "--nproc-per-node", 2, "--")
        length = ("--synthetic", "--iterations", "2", "--json", "-")
        result = self.run_fusor(*ranks, "run", self.step, *length)
        self.assertEqual(result.returncode, USAGE, result.stderr)
        self.assertIn("compiled for a world size of 1, this run has 2",
                      result.stderr)
        two = self.compiled("two_ranks", *MODEL, "--world-size", 2, "--sync-bn")
        ran = json.loads(self.call(*ranks, "run", two, *length))
        trained = json.loads(
            self.call(*ranks, "train", *MODEL, "--sync-bn", *length))
        self.assertEqual(ran["ranks"], 2)
        self.assert_same_bits(ran, trained)

    def test_a_program_file_holds_a_training_step(self):
        for text, args in (
                ("--phase eval", ("--phase", "eval", "-o", "x")),
                ("expected a file", ("-o", "-")),
                ("expected --output", ("--optimizer-batch-size", "8")),
                ("--output and --substitute-kernel",
                 ("-o", "x", "--substitute-kernel", "k:/dev/null")),
                ("none/x", ("-o", self.folder / "none" / "x"))):
            self.fails(USAGE, text, "compile", *MODEL, *args)


if __name__ == "__main__":
    unittest.main()
