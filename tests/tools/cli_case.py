"""Shared by command-line tests. The first argument of a program that imports
this is the folder of fusor and rn50."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from kernel_cache import kernel_cache

BIN = pathlib.Path(sys.argv.pop(1)).resolve()

USAGE, GRAPH, DATA, CHECKPOINT, DEVICE, MEMORY, DIVERGED = range(2, 9)

# A training run with a few milliseconds per step.
TINY = ("train", "--synthetic", "--arch", "resnet20-cifar", "-b", "4",
        "--num-classes", "10")
# The same on image files of any size, without evaluation.
TINY_FILES = ("train", "--arch", "resnet20-cifar", "--train-transform",
              "random-resized-crop", "--training-only", "--iterations", "2")


class CliTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.shared = pathlib.Path(folder.name)
        cls.environment = dict(os.environ,
                               FUSOR_CACHE_DIR=str(kernel_cache(BIN.parent)))
        cls.samples = cls.shared / "samples"
        subprocess.run([BIN / "fusor", "data", "make-samples", "--out",
                        cls.samples, "--train-images", "4", "--val-images",
                        "1"], check=True, capture_output=True)
        cls.jpeg = next(cls.samples.glob("train/*/*.jpg")).read_bytes()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, *args, program="fusor", **options):
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        environment = dict(self.environment, **options.pop("variables", {}))
        return subprocess.Popen([BIN / program, *map(str, args)], text=True,
                                env=environment, **options)

    def call(self, *args, **options):
        process = self.start(*args, **options)
        stdout, stderr = process.communicate(timeout=120)
        return subprocess.CompletedProcess(args, process.returncode, stdout,
                                           stderr)

    def succeeds(self, *args, **options):
        result = self.call(*args, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def fails(self, code, words, *args, program="fusor", **options):
        """Checks that the command fails with this code and that its error
        contains these words."""
        before = self.listing()
        result = self.call(*args, program=program, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertRegex(result.stderr, rf"\A{program}: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertEqual(self.listing(), before)
        return result.stderr

    def listing(self):
        return sorted(self.folder.rglob("*"))

    def copy_samples(self):
        return pathlib.Path(shutil.copytree(self.samples,
                                            self.folder / "data"))

    def json_of(self, *args):
        """Returns stdout as JSON. Nothing else may be printed there."""
        return json.loads(self.succeeds(*args, "--json", "-").stdout)
