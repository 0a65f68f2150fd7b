#!/usr/bin/env python3
"""The kernel cache as a user meets it: what was found, and why the rest not.

    cache_cli_test.py FUSOR
"""

import json
import os
import pathlib
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
        """kernel_cache of --json, and the line that people see."""
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

        source, line = self.cache(batch=3)
        self.assertEqual(self.changed(source), {"source"})
        self.assertIn("source changed", line)

        here = json.loads(self.run_ok("compile", *SMALL, "--json",
                                      "-").stdout)["target"]
        other = {"cpu-avx2": "cpu-avx512"}.get(here, "cpu-avx2")
        target, line = self.cache("--target", other)
        self.assertIn("target", self.changed(target))
        self.assertIn(f"target changed: {here}", line)

    def test_names_what_was_dropped(self):
        self.cache()
        kernels = sorted(self.folder.glob("kernels/*.kernel"))
        kernels[0].unlink()
        kernels[1].write_bytes(kernels[1].read_bytes()[:-1])
        cache, line = self.cache()
        self.assertEqual(cache["misses"], 2)
        self.assertEqual(self.changed(cache), {"lost"})
        self.assertIn("2 dropped from the cache or damaged", line)

    def test_commands_that_run_tell_it_too(self):
        for command in (["bench", "--iterations", "1", "--warmup", "0"],
                        ["train", "--synthetic", "--iterations", "1"]):
            with self.subTest(command[0]):
                result = self.run_ok(*command, *SMALL, "-b", "2", "--json",
                                     "-")
                self.assertIn("\ncache     ", result.stderr)
                self.assertIn("misses", json.loads(result.stdout)
                              ["kernel_cache"])

    def test_without_a_cache_there_is_nothing_to_tell(self):
        self.assertEqual(self.cache("--kernel-cache", "off"), (None, None))
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
