"""Tests saving and resuming: resume_cli_test.py FUSOR [--kills N]. A run that
is stopped at any moment and resumed must be bit-identical to an uninterrupted
run: every loss and all state."""

import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from kernel_cache import kernel_cache
from noise_images import make_images

FUSOR = pathlib.Path(sys.argv.pop(1)).resolve()
KILLS = 6
if "--kills" in sys.argv:
    at = sys.argv.index("--kills")
    KILLS = int(sys.argv[at + 1])
    del sys.argv[at:at + 2]

USAGE, DATA, CHECKPOINT = 2, 4, 5
STEPS = 30

# Image files, five batches per epoch, augmentation, a few milliseconds per
# step. The number of threads is fixed, since the bits may depend on it.
RUN = ("--arch", "resnet20-cifar", "-b", "4", "--num-classes", "10",
       "--threads", "1", "--epochs", str(STEPS // 5), "--print-freq", "1")


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


class ResumeTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.shared = pathlib.Path(folder.name)
        cls.environment = dict(os.environ,
                               FUSOR_CACHE_DIR=str(kernel_cache(FUSOR.parents[1])))
        cls.samples = cls.shared / "samples"
        make_images(cls.samples)
        # An uninterrupted run and its last checkpoint.
        cls.whole = cls.shared / "whole"
        cls.whole_report = cls.train_to_end(cls.whole)

    @classmethod
    def command(cls, workspace, *args, run=RUN):
        return [str(a) for a in (FUSOR, "train", cls.samples, *run,
                                 "--workspace", workspace, *args)]

    @classmethod
    def call(cls, *args, **options):
        return subprocess.run(args, env=cls.environment, text=True, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              check=False, **options)

    @classmethod
    def train_to_end(cls, workspace, *args):
        report = workspace.parent / f"{workspace.name}.json"
        result = cls.call(*cls.command(workspace, "--json", report, *args))
        assert result.returncode == 0, result.stderr
        return json.loads(report.read_text())

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.workspace = self.folder / "out"

    def checkpoints(self, workspace=None):
        folder = (workspace or self.workspace) / "checkpoints"
        return sorted(p for p in folder.glob("step-*"))

    def fails(self, code, words, *command, **options):
        result = self.call(*command, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertRegex(result.stderr, r"\Afusor: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, result.stderr)

    def run_until(self, word, number, *args):
        """Starts a run that gets a signal once it has printed the word."""
        process = subprocess.Popen(
            self.command(self.workspace, *args), env=self.environment,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        for line in process.stdout:
            if re.search(word, line):
                break
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=120)
        return process.returncode, stdout, stderr

    def expect_same_end(self, report):
        self.assertEqual(report["last_step"], STEPS)
        for key in ("state_hash", "loss_hash", "loss"):
            self.assertEqual(report[key], self.whole_report[key], key)

    def test_a_stopped_run_resumes_bit_identically(self):
        for number, step in ((signal.SIGTERM, 3), (signal.SIGUSR1, 7),
                             (signal.SIGINT, 15)):
            code, stdout, stderr = self.run_until(
                rf"iteration +{step}/", number, "--resume", "auto")
            self.assertEqual((code, stderr), (128 + number, ""), stdout)
            self.assertIn("saved     ", stdout)
        report = self.train_to_end(self.workspace, "--resume", "auto")
        self.expect_same_end(report)
        # The final evaluation equals that of the uninterrupted run.
        self.assertEqual(report["evaluations"][-1],
                         self.whole_report["evaluations"][-1])

    def test_resumes_the_state_of_every_optimizer(self):
        for optimizer in ("adamw", "rmsprop-tf", "lamb"):
            flags = ("--optimizer", optimizer, "--lr", "0.01", "--iterations",
                     "8")
            whole = self.train_to_end(self.folder / f"{optimizer}-whole",
                                      *flags)
            parts = self.folder / f"{optimizer}-parts"
            self.train_to_end(parts, *flags, "--prof", "3")
            report = self.train_to_end(parts, *flags, "--resume", "auto")
            self.assertEqual((report["steps"], report["last_step"]), (5, 8))
            for key in ("state_hash", "parameter_hash", "loss"):
                self.assertEqual(report[key], whole[key], optimizer)

    def test_a_run_killed_at_random_moments_ends_bit_identically(self):
        generator = random.Random(4)
        every = ("--checkpoint-every", "2", "--resume", "auto")
        seconds = 0.0
        for _ in range(KILLS):
            started = time.monotonic()
            code, stdout, stderr = self.run_until("iteration", 0, *every) \
                if seconds == 0 else self.killed_after(
                    generator.uniform(0, seconds), *every)
            seconds = max(seconds, time.monotonic() - started)
            self.assertIn(code, (0, -signal.SIGKILL), stderr)
            done = [int(n) for n in re.findall(r"iteration +(\d+)/", stdout)]
            kept = [int(p.name[5:13]) for p in self.checkpoints()]
            if done:
                # At most one interval and the unfinished save are lost.
                self.assertGreaterEqual(max(kept, default=0), done[-1] - 4)
            if code == 0:
                self.expect_finished_equal()
                shutil.rmtree(self.workspace)
        self.expect_same_end(self.train_to_end(self.workspace, *every))

    def expect_finished_equal(self):
        for name in ("model.safetensors", "optimizer.safetensors"):
            self.assertEqual(
                (self.checkpoints()[-1] / name).read_bytes(),
                (self.checkpoints(self.whole)[-1] / name).read_bytes())

    def killed_after(self, seconds, *args):
        process = subprocess.Popen(
            self.command(self.workspace, *args), env=self.environment,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
        return process.returncode, stdout, stderr

    def test_only_the_newest_are_kept(self):
        self.train_to_end(self.workspace, "--checkpoint-every", "7",
                          "--keep-checkpoints", "2")
        self.assertEqual([p.name for p in self.checkpoints()],
                         ["step-00000028", "step-00000030"])

    def test_corrupt_checkpoints_are_skipped_and_named(self):
        shutil.copytree(self.whole, self.workspace)
        newest = self.checkpoints()[-1]
        flip(newest / "optimizer.safetensors", 5000)
        result = self.call(*self.command(self.workspace, "--resume", "auto"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, r"\Awarning: skipped: .*optimizer\."
                                        r"safetensors: damaged.*\n\Z")
        self.assertIn("resumed   " + str(self.checkpoints()[-3]),
                      result.stdout)
        for path in self.checkpoints():
            flip(path / "manifest.json", 30)
        self.fails(CHECKPOINT, ["none of the 3 checkpoints", "is intact",
                                "manifest.json: damaged"],
                   *self.command(self.workspace, "--resume", "auto"))

    def test_what_is_not_a_checkpoint_is_rejected(self):
        foreign = self.folder / "checkpoint.pth.tar"
        foreign.write_bytes(b"PK\x03\x04")
        out = self.folder / "new"
        newest = self.checkpoints(self.whole)[-1]
        for words, place in [
                (["no such file or folder"], self.folder / "nowhere"),
                (["expected a fusor checkpoint", "--pretrained-weights"], foreign),
                (["expected a checkpoint, found none"], self.folder)]:
            with self.subTest(place=place):
                self.fails(CHECKPOINT, [str(place), *words],
                           *self.command(out, "--resume", place))
        (self.folder / "manifest.json").write_text(
            (newest / "manifest.json").read_text())
        self.fails(CHECKPOINT, ["cannot read", "model.safetensors"],
                   *self.command(out, "--resume", self.folder))

    def test_a_file_a_folder_and_a_workspace_name_the_same(self):
        newest = self.checkpoints(self.whole)[-2]
        for place in (newest, newest / "manifest.json",
                      newest / "model.safetensors"):
            report = self.train_to_end(self.folder / f"{place.name}.out",
                                       "--resume", place)
            self.expect_same_end(report)
        done = self.call(*self.command(self.workspace, "--resume", self.whole))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"after step {STEPS} ", done.stdout)

    def test_a_checkpoint_of_another_run_is_rejected(self):
        newest = self.checkpoints(self.whole)[-1]
        for words, args in [
                (["--batch-size was 4, is now 5"], ("-b", "5")),
                (["--arch was resnet20-cifar, is now resnet18"],
                 ("--arch", "resnet18", "--image-size", "32")),
                (["--seed was 0, is now 1"], ("--seed", "1")),
                (["data was 20 images", "is now 10 images"],
                 ("--max-per-class", "2"))]:
            with self.subTest(args=args):
                given = dict(zip(RUN[::2], RUN[1::2]))
                given.update(zip(args[::2], args[1::2]))
                run = [word for pair in given.items() for word in pair]
                self.fails(CHECKPOINT, [str(newest), "of another run", *words],
                           *self.command(self.workspace, "--resume", newest,
                                         run=run))

    def test_options_that_differ_are_named(self):
        result = self.call(*self.command(
            self.workspace, "--resume", self.checkpoints(self.whole)[-2],
            "--lr", "0.2", "--no-checkpoints"))
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stderr, "warning: resume: --lr was the "
                                        "default, is now 0.2\n")

    def test_a_new_run_does_not_mix_with_another_ones_checkpoints(self):
        self.fails(USAGE, [f"--workspace {self.whole}", "--resume auto"],
                   *self.command(self.whole))

    def test_two_runs_do_not_save_in_one_workspace(self):
        shutil.copytree(self.whole, self.workspace)
        process = subprocess.Popen(
            self.command(self.workspace, "--resume", "auto", "--epochs",
                         "100000", run=RUN[:-4]),
            env=self.environment, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        process.stdout.readline()
        process.stdout.readline()
        self.fails(USAGE, ["another run saves its checkpoints here"],
                   *self.command(self.workspace, "--resume", "auto"))

    def test_a_workspace_that_cannot_be_written(self):
        self.workspace.mkdir()
        (self.workspace / "checkpoints").write_text("")
        self.fails(CHECKPOINT, ["checkpoints"], *self.command(self.workspace))

    def test_a_disk_that_fills_up_leaves_the_older_checkpoint(self):
        shutil.copytree(self.whole, self.workspace)
        shutil.rmtree(self.checkpoints()[-1])
        before = self.checkpoints()

        def limit():  # makes writes fail as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000))

        self.fails(CHECKPOINT, ["cannot write", "File too large"],
                   *self.command(self.workspace, "--resume", "auto",
                                 "--training-only"), preexec_fn=limit)
        self.assertEqual(self.checkpoints(), before)
        self.expect_same_end(
            self.train_to_end(self.workspace, "--resume", "auto"))

    def test_a_save_that_fails_is_tried_again_before_the_run_ends(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000))

        result = self.call(*self.command(self.workspace, "--checkpoint-every",
                                         "2"), preexec_fn=limit)
        self.assertEqual(result.returncode, CHECKPOINT)
        self.assertRegex(
            result.stderr, r"\A(warning: cannot write [^\n]*File too large\n){2}"
                           r"fusor: cannot write [^\n]*File too large\n\Z")
        self.assertIn("iteration      6/", result.stdout)
        self.assertEqual(self.checkpoints(), [])

    def test_weights_of_another_run_to_start_from(self):
        weights = self.whole / "model.safetensors"
        report = self.train_to_end(self.workspace, "--pretrained-weights",
                                   weights, "--lr", "0", "--iterations", "1",
                                   "--no-checkpoints")
        self.assertLess(report["first_loss"], self.whole_report["first_loss"])
        self.assertEqual(list(self.workspace.iterdir()), [])
        self.fails(CHECKPOINT, ["cannot read /nowhere"],
                   *self.command(self.workspace, "--pretrained-weights",
                                 "/nowhere"))

    def test_flags_that_need_a_workspace_require_one(self):
        for args in (("--resume", "auto"), ("--checkpoint-every", "5")):
            self.fails(USAGE, [args[0], "expected --workspace"], FUSOR, "train",
                       self.samples, *RUN, *args)


if __name__ == "__main__":
    unittest.main()
