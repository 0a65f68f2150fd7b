#!/usr/bin/env python3
"""Tests the kernel cache from the command line: hits, and reasons of misses.

    cache_cli_test.py FUSOR
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

FUSOR = sys.argv.pop(1)
SMALL = ["-a", "resnet20-cifar", "--image-size", "8", "--num-classes", "10"]


class CacheTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_ok(self, *args):
        result = subprocess.run(
            [FUSOR, *args], capture_output=True, text=True, check=False,
            env=dict(os.environ, FUSOR_CACHE_DIR=str(self.folder)))
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def cache(self, *args, batch=2):
        """Returns kernel_cache of --json, and the printed line."""
        result = self.run_ok("compile", *SMALL, "-b", str(batch), *args,
                             "--json", "-")
        out = json.loads(result.stdout)
        line = next((line for line in result.stderr.splitlines()
                     if line.startswith("cache ")), None)
        if out["kernel_cache"] is not None:
            self.assertEqual(out["kernel_cache"]["hits"]
                             + out["kernel_cache"]["misses"],
                             out["distinct_kernels"])
        return out["kernel_cache"], line

    def changed(self, cache):
        return {word for reason in cache["reasons"]
                for word in reason["changed"]}

    def test_names_what_changed(self):
        cold, line = self.cache()
        self.assertEqual(cold["hits"], 0)
        self.assertEqual(self.changed(cold), {"new"})
        self.assertEqual(line, "cache     0 hits, {0} misses: {0} new"
                         .format(cold["misses"]))
        warm, line = self.cache()
        self.assertEqual(warm["misses"], 0)
        self.assertEqual(line, f"cache     {cold['misses']} hits, 0 misses")

        options, line = self.cache("--fusion-rounding", "eager")
        self.assertEqual(self.changed(options), {"options"})
        self.assertIn("options changed: rounding=fast -> rounding=eager", line)

        inputs, line = self.cache(batch=3)
        self.assertEqual(self.changed(inputs), {"inputs"})
        self.assertIn("inputs changed: images=u8[2,8,8,3] labels=i32[2] -> "
                      "images=u8[3,8,8,3] labels=i32[3]", line)

        here = json.loads(self.run_ok("compile", *SMALL, "--json",
                                      "-").stdout)["target"]
        other = {"cpu-avx2": "cpu-avx512"}.get(here, "cpu-avx2")
        target, line = self.cache("--target", other)
        self.assertIn("target", self.changed(target))
        self.assertIn(f"target changed: {here}", line)

    def test_names_the_option_that_changed(self):
        """Each option changes kernels instead of adding new ones."""
        self.cache()
        kernels, before = self.folder / "kernels", self.folder / "before"
        shutil.copytree(kernels, before)
        for setting, *flags in (
                ("fusion", "--fusion", "off"),
                ("rounding", "--fusion-rounding", "eager"),
                ("dtype", "--dtype", "bf16"),
                ("momentum", "--momentum", "0.8"),
                ("nesterov", "--nesterov"),
                ("weight-decay", "--weight-decay", "5e-5"),
                ("optimizer", "--optimizer", "lars"),
                ("clip-norm", "--clip-grad-norm", "3"),
                ("ema-decay", "--ema-decay", "0.99"),
                ("loss-scale", "--static-loss-scale", "128"),
                ("world-size", "--world-size", "2"),
                ("fuel-fuse", "--fuel", "fuse=3")):
            with self.subTest(setting):
                shutil.rmtree(kernels)
                shutil.copytree(before, kernels)
                alone, _ = self.cache(*flags)
                named = [reason["reason"] for reason in alone["reasons"]
                         if reason["changed"] == ["options"]]
                self.assertTrue(named)
                for reason in named:
                    self.assertIn(f"{setting}=", reason)
                    self.assertNotRegex(reason, r"\d{8}", "a raw float")

    def test_names_the_one_of_two_changes_that_made_the_kernel(self):
        self.cache()
        both, line = self.cache("--weight-decay", "5e-5", batch=3)
        kernels = {tuple(reason["changed"]): reason["kernels"]
                   for reason in both["reasons"]}
        self.assertEqual(kernels.keys(), {("inputs",), ("options",)}, line)
        # The updates of weights.
        updates = kernels[("options",)]
        self.assertIn(f"; {updates} with options changed: weight-decay=0.0001 "
                      "-> weight-decay=5e-05", line)

    def test_names_what_was_evicted(self):
        self.cache()
        kernels = sorted(self.folder.glob("kernels/*.kernel"))
        kernels[0].unlink()
        kernels[1].write_bytes(kernels[1].read_bytes()[:-1])
        cache, line = self.cache()
        self.assertEqual(cache["misses"], 2)
        self.assertEqual(self.changed(cache), {"lost"})
        self.assertIn("2 evicted from the cache or corrupt", line)

    def test_commands_that_run_report_it_too(self):
        for command in (["bench", "--iterations", "1", "--warmup", "0"],
                        ["train", "--synthetic", "--iterations", "1"]):
            with self.subTest(command[0]):
                result = self.run_ok(*command, *SMALL, "-b", "2", "--json",
                                     "-")
                self.assertIn("\ncache     ", result.stderr)
                self.assertIn("misses", json.loads(result.stdout)
                              ["kernel_cache"])

    def test_a_cache_that_cannot_be_written_is_one_warning(self):
        (self.folder / "kernels").write_text("a file")
        for command in (["compile"], ["train", "--synthetic", "--iterations",
                                      "1"]):
            result = self.run_ok(*command, *SMALL, "-b", "2", "--json", "-")
            self.assertEqual(
                [line for line in result.stderr.splitlines()
                 if line.startswith("warning")],
                [f"warning: kernel cache: cannot create {self.folder}/kernels: "
                 "Not a directory; kernels are compiled in every run; set "
                 "FUSOR_CACHE_DIR to a writable folder"])
            self.assertIn("cannot create", json.loads(result.stdout)[
                "kernel_cache"]["failure"])
        (self.folder / "kernels").unlink()
        (self.folder / "kernels").symlink_to("/proc")
        result = self.run_ok("compile", *SMALL, "-b", "2")
        self.assertRegex(result.stderr, r"\Awarning: kernel cache: cannot write "
                         rf"{self.folder}/kernels/\w+\.kernel: No such file")

    def test_nothing_is_reported_without_a_cache(self):
        self.assertEqual(self.cache("--kernel-cache", "off"), (None, None))
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
