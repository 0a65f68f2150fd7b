#!/usr/bin/env python3
"""Tests loss scaling, accumulation, clipping and averaging from the command
line.

    training_cli_test.py FUSOR
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from small_network import NETWORK

FUSOR = sys.argv.pop(1)
TINY = ["train", "--synthetic", "--arch", NETWORK, "-b", "4",
        "--kernel-cache", "off", "--training-only"]


def fusor(*args):
    return subprocess.run([FUSOR, *map(str, args)], capture_output=True,
                          text=True, check=False)


class TrainingTest(unittest.TestCase):
    def run_json(self, *args):
        result = fusor(*TINY, *args, "--json", "-")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout), result.stderr

    def assert_fails(self, code, message, *args):
        result = fusor(*TINY, *args)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stderr.strip().count("\n"), 0, result.stderr)
        self.assertIn(message, result.stderr)

    def test_flags_that_do_not_go_together_get_one_clear_line(self):
        for message, args in (
                ("--optimizer-batch-size 6: expected a multiple of the 4 "
                 "images per step (-b 4, one rank)",
                 ["--optimizer-batch-size", "6"]),
                ("--optimizer-batch-size 0: expected a multiple",
                 ["--optimizer-batch-size", "0"]),
                ("--cuda-graph-steps 8: expected backend cuda, got cpu",
                 ["--cuda-graph-steps", "8"]),
                ("--cuda-graph-steps 8 and --cuda-graph off: expected one of "
                 "them", ["--cuda-graph-steps", "8", "--cuda-graph", "off",
                          "--backend", "cuda"]),
                ("--cuda-graph-steps 8 and --optimizer-batch-size 8: expected "
                 "one of them", ["--cuda-graph-steps", "8", "--backend", "cuda",
                                 "--optimizer-batch-size", "8"]),
                ("--cuda-graph-steps: expected a whole number from 1 to 64, "
                 "got 0", ["--cuda-graph-steps", "0"]),
                ("--lr-cycle-epochs: expected --lr-schedule linear, cosine or "
                 "polynomial, got step",
                 ["--lr-schedule", "step", "--lr-cycle-epochs", "5"]),
                ("--param-group fc:lr=1: expected REGEX:lr-scale=X,"
                 "weight-decay=X, one or both, X at least 0",
                 ["--param-group", "fc:lr=1"]),
                ("--param-group '(': not a regular expression",
                 ["--param-group", "(:lr-scale=1"]),
                ("parameter group 'fc': matches no parameter of",
                 ["--param-group", "fc:lr-scale=10"]),
                ("--opt-level O0 is fp32: expected no --amp",
                 ["--opt-level", "O0", "--amp"]),
                ("--opt-level O0 is fp32: expected no --dtype bf16",
                 ["--opt-level", "O0", "--dtype", "bf16"]),
                ("--opt-level: expected", ["--opt-level", "O4"]),
                ("--decoupled-weight-decay: expected --optimizer sgd, got lars",
                 ["--optimizer", "lars", "--decoupled-weight-decay"]),
                ("--beta1: expected --optimizer adam or adamw or lamb, got sgd",
                 ["--beta1", "0.9"]),
                ("--beta2: expected --optimizer adam or adamw or lamb, got "
                 "rmsprop", ["--optimizer", "rmsprop", "--beta2", "0.9"]),
                ("--alpha: expected --optimizer rmsprop or rmsprop-tf, got "
                 "lamb", ["--optimizer", "lamb", "--alpha", "0.9"]),
                ("--eps: expected --optimizer adam or adamw or rmsprop or "
                 "rmsprop-tf or lamb, got lars",
                 ["--optimizer", "lars", "--eps", "1e-6"]),
                ("--momentum: expected --optimizer sgd or lars or rmsprop or "
                 "rmsprop-tf, got adam",
                 ["--optimizer", "adam", "--mom", "0.9"]),
                ("--nesterov: expected --optimizer sgd or lars, got adamw",
                 ["--optimizer", "adamw", "--nesterov"]),
                ("--beta2: expected a number from 0 to 0.9999999, got 1",
                 ["--optimizer", "adam", "--beta2", "1"]),
                ("--eps: expected a number from 1e-30 to 1, got 0",
                 ["--optimizer", "adam", "--eps", "0"]),
                ("--optimizer: expected sgd, lars, adam, adamw, rmsprop, "
                 "rmsprop-tf, lamb, got adan",
                 ["--optimizer", "adan"]),
                ("--initial-loss-scale 8: expected 16 to",
                 ["--dynamic-loss-scale", "--initial-loss-scale", "8",
                  "--min-loss-scale", "16"])):
            with self.subTest(args=args):
                self.assert_fails(2, message, *args)

    def test_a_dynamic_scale_is_shown_and_reported(self):
        out, text = self.run_json("--dtype", "fp16", "--dynamic-loss-scale",
                                  "--initial-loss-scale", "1024",
                                  "--loss-scale-window", "2", "--iterations",
                                  "4", "-p", "2")
        self.assertEqual(out["loss_scale"], 4096)
        self.assertEqual(out["skipped_updates"], 0)
        self.assertIn("loss scale 2048\n", text)

    def test_levels_decide_about_the_scale(self):
        for level, scaled in (("O0", False), ("O1", False), ("O2", True),
                              ("O3", False)):
            with self.subTest(level=level):
                out, _ = self.run_json("--opt-level", level, "--iterations",
                                       "1")
                self.assertEqual("loss_scale" in out, scaled)
        out, _ = self.run_json("--opt-level", "O2", "--static-loss-scale",
                               "128", "--iterations", "1")
        self.assertNotIn("loss_scale", out)

    def test_a_run_that_overflows_forever_ends_with_the_reason(self):
        self.assert_fails(
            8, "the last 5 updates were skipped because of gradients that are "
            "not finite, at loss scale", "--dynamic-loss-scale", "--lr",
            "1e38", "--lr-schedule", "constant", "--overflow-limit", "5",
            "--iterations", "20", "-p", "1")

    def test_micro_batches_make_one_update(self):
        out, _ = self.run_json("--optimizer-batch-size", "12", "--iterations",
                               "2")
        self.assertEqual(out["steps"], 2)

    def test_each_optimizer_trains(self):
        losses = set()
        for optimizer in (
                ("sgd",), ("lars",), ("adam",), ("adamw", "--beta1", "0.8"),
                ("rmsprop", "--momentum", "0", "--alpha", "0.9"),
                ("rmsprop-tf", "--eps", "1e-3"),
                ("lamb", "--beta2", "0.99", "--amp", "--bn-weight-decay"),
                ("adam", "--param-group", "^head:lr-scale=10,weight-decay=0",
                 "--param-group", "second:lr-scale=0.5")):
            with self.subTest(optimizer=optimizer):
                out, _ = self.run_json("--optimizer", *optimizer, "--lr",
                                       "0.01", "--iterations", "3", "--verify")
                self.assertEqual(out["steps"], 3)
                losses.add(out["loss"])
        self.assertEqual(len(losses), 8)

    def test_each_loss_trains(self):
        losses = {loss: self.run_json("--loss", loss, "--lr", "0.01",
                                      "--iterations", "2")[0]["loss"]
                  for loss in ("cross-entropy", "bce", "mse")}
        self.assertEqual(len(set(losses.values())), 3)
        # The other losses are means over the classes.
        self.assertEqual(max(losses, key=losses.get), "cross-entropy")

    def test_everything_together_trains(self):
        with tempfile.TemporaryDirectory() as folder:
            out, _ = self.run_json(
                "--opt-level", "O2", "--optimizer", "lars",
                "--clip-grad-norm", "1", "--ema-decay", "0.9",
                "--optimizer-batch-size", "8", "--iterations", "3",
                "--workspace", folder)
            self.assertEqual(out["skipped_updates"], 0)
            self.assertTrue(
                (pathlib.Path(folder) / "model.safetensors").exists())


if __name__ == "__main__":
    unittest.main()
