#!/usr/bin/env python3
"""Tests that graph_fuzzer finds and reduces injected bugs, and passes without
one.

    graph_fuzzer_test.py GRAPH_FUZZER
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

FUZZER = pathlib.Path(sys.argv.pop(1)).resolve()


def fuzz(folder, *args, fault=""):
    return subprocess.run([FUZZER, "--out", folder, *map(str, args)],
                          capture_output=True, text=True, check=False,
                          env=dict(os.environ, INJECTED_FAULT=fault))


class GraphFuzzerTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def find(self, fault, seed):
        """Returns the output of a run that must find the fault with this
        seed."""
        run = fuzz(self.folder, "--seed", seed, "--count", 1, fault=fault)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertIn(f"FAILED seed {seed}: ", run.stdout)
        return run.stdout

    def test_fixed_seeds_pass_in_two_processes(self):
        run = fuzz(self.folder, "--seed", 1, "--count", 8, "--jobs", 2)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertRegex(run.stdout, r"^seed 1\n8 graphs, 0 failed")

    def test_a_wrong_rewrite_is_found_reduced_and_runs_again(self):
        text = self.find("wrong:fuse:", 1)
        self.assertIn("interpreter: output", text)
        nodes = re.findall(r"^  %\S.* = (?!data|weight)\w+\(", text, re.M)
        self.assertLessEqual(len(nodes), 3, text)
        again = re.search(r"reduced again: graph_fuzzer (.*)", text).group(1)
        self.assertEqual(
            fuzz(self.folder, *again.split(), fault="wrong:fuse:").returncode, 1)
        self.assertEqual(fuzz(self.folder, *again.split()).returncode, 0)

    def test_threads_that_prepare_calls_choose_the_same_implementations(self):
        # On AMX, oneDNN 2.6 missed an implementation in about a third of the
        # runs, and loading the plan failed.
        for _ in range(10):
            run = fuzz(self.folder, "--seed", 886584759, "--count", 1,
                       "--reduce-seconds", 0.1)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    def test_a_crash_is_found(self):
        self.assertIn("FAILED seed 2: SIGABRT", self.find("abort:fuse:", 2))

    def test_a_wrong_gradient_is_found(self):
        # The interpreter computes the wrong gradient, too. Only numeric
        # gradients reveal it.
        run = fuzz(self.folder, "--seed", 1, "--count", 30, "--jobs", 2,
                   "--reduce-seconds", 0, fault="wrong:simplify:")
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertIn(": gradient: derivative", run.stdout)


if __name__ == "__main__":
    unittest.main()
