#!/usr/bin/env python3
"""Tests autotune results from the command line: tune_cli_test.py FUSOR."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from small_network import NETWORK

FUSOR = sys.argv.pop(1)
USAGE, GRAPH = 2, 3


def small(batch=2, threads=1):
    return ["-a", "resnet20-cifar", "--num-classes", "10", "-b", batch,
            "--threads", threads]


def train(steps=2):
    return ["train", *small(), "--synthetic", "--training-only", "--amp",
            "--iterations", steps]


class TuneCase(unittest.TestCase):
    """A file of choices for all tests of a class, which fill() writes."""

    @classmethod
    def setUpClass(cls):
        cls.shared = tempfile.TemporaryDirectory()
        cls.cache = pathlib.Path(cls.shared.name) / "cache"
        cls.choices = pathlib.Path(cls.shared.name) / "choices.txt"
        cls.fill()

    @classmethod
    def tearDownClass(cls):
        cls.shared.cleanup()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    @classmethod
    def run_fusor(cls, *args):
        return subprocess.run(
            [FUSOR, *map(str, args)], capture_output=True, text=True,
            check=False, env=dict(os.environ, FUSOR_CACHE_DIR=str(cls.cache)))

    @classmethod
    def json_of(cls, *args):
        result = cls.run_fusor(*args, "--json", "-")
        assert result.returncode == 0, result.stderr
        out = json.loads(result.stdout)
        out["text"] = result.stderr
        return out

    def fails(self, code, text, *args):
        result = self.run_fusor(*args)
        self.assertEqual(result.returncode, code, result.stderr)
        line, = result.stderr.splitlines()
        self.assertIn(text, line)

    def edited(self, old, new):
        text = self.choices.read_text()
        self.assertIn(old, text)
        path = self.folder / "edited.txt"
        path.write_text(text.replace(old, new, 1))
        return path


class TuneTest(TuneCase):
    @classmethod
    def fill(cls):
        cls.tuned = cls.json_of(*train(), "--tune", "--choices", cls.choices)

    def test_measures_writes_and_uses_the_results(self):
        text = self.choices.read_text()
        self.assertTrue(text.startswith("fusor choices 2\n"))
        self.assertIn("\nthreads 1\n", text)
        self.assertRegex(self.tuned["choices"], "^[0-9a-f]{16}$")
        tuning = self.tuned["tuning"]
        self.assertEqual(tuning["choices"], self.tuned["choices"])
        self.assertEqual(tuning["file"], str(self.choices))
        measured = {(c["problem"], c["dtype"]) for c in tuning["candidates"]}
        chosen = [(c["problem"], c["dtype"]) for c in tuning["candidates"]
                  if c["chosen"]]
        self.assertEqual(len(chosen), len(set(chosen)))
        self.assertEqual(set(chosen), measured)
        self.assertIn("tuned     ", self.tuned["text"])
        self.assertRegex(self.tuned["text"],
                         r"\nautotune +[0-9a-f]+ for (\d+) of \1 convolutions")

    def test_one_file_always_gives_the_same_bits(self):
        runs = [self.json_of(*train(), "--choices", self.choices)
                for _ in range(2)]
        for run in runs:
            self.assertEqual(run["choices"], self.tuned["choices"])
            self.assertEqual(run["state_hash"], self.tuned["state_hash"])
            self.assertNotIn("tuning", run)

    def test_without_a_file_the_built_in_heuristic_decides(self):
        out = self.json_of("compile", *small(), "--amp")
        self.assertEqual(out["choices"], "none")
        self.assertNotIn("convolutions", out["counters"])

    def test_the_default_place_is_beside_the_kernel_cache(self):
        out = self.json_of("compile", *small(), "--tune")
        path = pathlib.Path(out["tuning"]["file"])
        self.assertEqual(path.parent, self.cache / "choices")
        self.assertTrue(path.name.startswith("resnet20_cifar.b2.f32.cpu-"),
                        path.name)
        again = self.json_of("compile", *small(), "--choices", path)
        self.assertEqual(again["choices"], out["choices"])

    def test_a_step_of_other_shapes_reports_that_none_applies(self):
        out = self.json_of("compile", *small(batch=3), "--amp", "--choices",
                           self.choices)
        self.assertRegex(out["text"], r"for 0 of \d+ convolutions")

    def test_dumps_and_checkpoints_name_the_autotune_results(self):
        workspace = self.folder / "w"
        dump = self.folder / "d"
        self.json_of(*train(), "--choices", self.choices, "--workspace",
                     workspace, "--dump-to", dump, "--dump-pass", "plan")
        module = json.loads(next(dump.glob("m*/module.json")).read_text())
        self.assertEqual(module["choices"], self.tuned["choices"])
        plan = next(dump.glob("m*/plan.txt")).read_text()
        self.assertIn("choices " + self.tuned["choices"], plan)
        manifest = next((workspace / "checkpoints").glob("*/manifest.json"))
        self.assertIn(self.tuned["choices"], manifest.read_text())

        longer = [*train(4), "--workspace", workspace, "--resume", "auto"]
        same = self.run_fusor(*longer, "--choices", self.choices, "--prof",
                              "1")
        self.assertEqual(same.returncode, 0, same.stderr)
        self.assertNotIn("autotune", same.stderr)
        other = self.run_fusor(*longer)
        self.assertEqual(other.returncode, 0, other.stderr)
        self.assertIn(
            f"warning: resume: autotune results were "
            f"{self.tuned['choices']}, are now none; the run is no longer "
            "bit-identical to an uninterrupted one", other.stderr)

    def test_variants_take_autotune_results(self):
        result = self.run_fusor(
            "compare", *small(), "--amp", "--rounds", "1", "--warmup", "0",
            "--a", "choices=none", "--b", f"choices={self.choices}")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_what_is_wrong_with_a_file_is_one_line(self):
        compile_ = ("compile", *small(), "--amp", "--choices")
        missing = self.folder / "missing.txt"
        self.fails(USAGE, str(missing), *compile_, missing)
        self.fails(GRAPH, "expected version 2, got 0", *compile_,
                   self.edited("choices 2", "choices 0"))
        self.fails(GRAPH, "unknown line", *compile_,
                   self.edited("candidate", "canditate"))
        self.fails(GRAPH, "the file was cut", *compile_,
                   self.edited(re.search("end .*\n",
                                         self.choices.read_text())[0], ""))
        self.fails(GRAPH, "measured with another library: expected oneDNN", *compile_,
                   self.edited("library oneDNN", "library twoDNN"))
        self.fails(GRAPH, "another number of threads: expected 2, got 1",
                   "compile", *small(threads=2), "--choices", self.choices)

    def test_what_cannot_be_measured_or_written_is_rejected_at_once(self):
        self.fails(USAGE, "--choices", "compile", *small(), "--tune",
                   "--choices", self.folder / "no" / "folder.txt")
        out = self.json_of("compile", *small())
        other = ("cpu-avx512" if out["target"] == "cpu-avx2" else "cpu-avx2")
        self.fails(USAGE, "--tune measures this machine: expected --target "
                   f"{out['target']}, got {other}",
                   "compile", *small(), "--tune", "--target", other)


class AutoTest(TuneCase):
    """fusor bench --auto and fusor train --auto."""

    @classmethod
    def fill(cls):
        # Given flags are not searched.
        cls.chosen = cls.json_of(
            "bench", "-a", NETWORK, "--threads", 1, "--fusion", "on",
            "--amp", "--auto", "--auto-budget", 10, "--choices", cls.choices)

    def test_the_table_has_the_fastest_configuration(self):
        trials = self.chosen["trials"]
        self.assertGreaterEqual(len(trials), 3)
        self.assertEqual(trials[0]["verdict"], "default")
        self.assertEqual(trials[0]["batch"], "32")
        for trial in trials:
            self.assertEqual(set(trial) & {"precision", "fusion"}, set())
            self.assertGreater(trial["modelled_images_per_second"], 0)
        best = max(trials, key=lambda t: t.get("images_per_second", 0))
        batch = self.chosen["settings"]["--batch-size"]
        # The model decides between choices that differ by no more than 2 %, and
        # a gain over the default of no more than 1 % does not count.
        self.assertGreaterEqual(
            1.02 * 1.011 * max(t["images_per_second"] for t in trials
                        if t["batch"] == batch and "images_per_second" in t),
            best["images_per_second"])
        text = self.chosen["text"]
        self.assertRegex(text, r"^auto      \d+ configurations, \d+ measured, "
                         r"in \d+ s\n")
        self.assertRegex(text, r"\n\* .*\n")
        self.assertIn(f"wrote {self.choices}\n", text)
        self.assertIn(f"\nsetting --batch-size {batch}\n",
                      self.choices.read_text())

    def test_settings_act_as_if_given(self):
        command = ["compile", "-a", "resnet20-cifar", "--num-classes", 10,
                   "--threads", 1]
        file = self.file("--amp", "--batch-size 3")
        chosen = self.json_of(*command, "--choices", file)
        given = self.json_of(*command, "--amp", "-b", 3)
        self.assertEqual(chosen["arena_bytes"], given["arena_bytes"])
        # Flags of the command line come first.
        chosen = self.json_of(*command, "--choices", file, "--dtype", "fp32",
                              "-b", 5)
        given = self.json_of(*command, "-b", 5)
        self.assertEqual(chosen["arena_bytes"], given["arena_bytes"])

    def with_settings(self, *settings):
        kept = [line for line in self.choices.read_text().splitlines()
                if not line.startswith(("setting", "candidate", "precision",
                                        "end"))]
        lines = [f"setting {setting}" for setting in settings]
        return "\n".join([*kept, *lines, f"end {len(lines)}"]) + "\n"

    def test_training_chooses_once_and_resumes_with_the_same(self):
        run = ["train", "--synthetic", "-a", NETWORK, "--threads", 1,
               "--fusion", "on", "--dtype", "fp32", "--training-only", "--auto",
               "--auto-budget", 1, "--workspace", self.folder / "w",
               "--resume", "auto"]
        first = self.run_fusor(*run, "--iterations", 1)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertRegex(first.stdout, r"^auto      \d+ configurations")
        self.assertIn("\ntrained   1 step in ", first.stdout)
        self.assertTrue((self.folder / "w" / "auto.choices").exists())
        # A checkpoint has the choices, too.
        chosen = (self.folder / "w" / "auto.choices").read_text()
        (self.folder / "w" / "auto.choices").unlink()
        again = self.run_fusor(*run, "--iterations", 2)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("auto      kept the choices of ", again.stdout)
        self.assertIn("\nresumed   ", again.stdout)
        self.assertEqual((self.folder / "w" / "auto.choices").read_text(),
                         chosen)

    def test_ranks_choose_buckets_and_loader_threads_of_a_data_set(self):
        data = self.folder / "data"
        self.run_fusor("data", "make-samples", "--out", data,
                       "--train-images", 8, "--val-images", 2)
        run = ["launch", "--nproc-per-node", 2, "--", "train", data, "-a",
               NETWORK, "-b", 2, "--fusion", "on", "--dtype", "fp32",
               "--winograd", "on", "--training-only", "--train-transform",
               "random-resized-crop", "--iterations", 2, "--auto",
               "--auto-budget", 1]
        rejected = self.run_fusor(*run)
        self.assertEqual(rejected.returncode, USAGE)
        self.assertIn("--auto: expected --choices FILE or --workspace DIR, "
                      "which all ranks read, got neither", rejected.stderr)
        done = self.run_fusor(*run, "--choices", self.folder / "c")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"\n +workers +buckets +modelled ")
        # Whichever policy wins a second of measuring.
        self.assertRegex(done.stdout, r"\n[* ] +2 +exact .* default\n")
        self.assertIn("parameters are identical on all 2", done.stdout)
        self.assertIn("setting --workers 2\n",
                      (self.folder / "c").read_text())

    def test_rn50_chooses_and_trains(self):
        result = subprocess.run(
            [pathlib.Path(FUSOR).with_name("rn50"), *map(str, [
                "--synthetic", "-a", NETWORK, "--threads", 1, "--fusion",
                "on", "--dtype", "fp32", "--training-only", "--auto",
                "--auto-budget", 1, "--workspace", self.folder / "w",
                "--iterations", 1])],
            capture_output=True, text=True, check=False, timeout=300,
            env=dict(os.environ, FUSOR_CACHE_DIR=str(self.cache)))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("\ntrained   1 step in ", result.stdout)

    def test_ctrl_c_leaves_no_file(self):
        file = self.folder / "c"
        run = subprocess.Popen(
            [FUSOR, "bench", "-a", "resnet20-cifar", "-b", "256", "--auto",
             "--choices", file], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
            env=dict(os.environ, FUSOR_CACHE_DIR=str(self.cache)))
        time.sleep(4)  # planning, or measuring the default
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate(timeout=300)
        self.assertEqual(run.returncode, 128 + signal.SIGINT, errors)
        self.assertFalse(file.exists())

    def test_settings_apply_to_a_file_of_the_variable(self):
        file = self.file("--batch-size 3")
        command = ["compile", "-a", "resnet20-cifar", "--num-classes", 10,
                   "--threads", 1]
        given = self.json_of(*command, "-b", 3)
        os.environ["FUSOR_FLAGS"] = f"--choices {file}"
        self.addCleanup(os.environ.pop, "FUSOR_FLAGS")
        self.assertEqual(self.json_of(*command)["arena_bytes"],
                         given["arena_bytes"])

    def test_what_contradicts_it_is_rejected(self):
        bench = ["bench", *small(), "--auto"]
        self.fails(USAGE, "--auto: expected --choices FILE", *bench)
        self.fails(USAGE, "--auto and --tune: expected one of them", *bench,
                   "--tune", "--choices", self.folder / "c")
        self.fails(USAGE, "--auto-budget requires --auto", "bench", *small(),
                   "--auto-budget", 3)
        self.fails(USAGE, "--choices: cannot write", *bench, "--choices",
                   self.folder / "no" / "c")
        self.fails(GRAPH, "expected a flag --NAME", "compile", *small(),
                   "--choices", self.file("amp"))
        self.fails(USAGE, "--winograd: expected on, off, got maybe", "compile",
                   *small(), "--choices", self.file("--winograd maybe"))

    def file(self, *settings):
        path = self.folder / "settings"
        path.write_text(self.with_settings(*settings))
        return path


if __name__ == "__main__":
    unittest.main()
