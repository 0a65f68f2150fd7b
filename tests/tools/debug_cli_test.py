#!/usr/bin/env python3
"""Tests --check-numerics, --stats-trace, fusor isolate and bisect from the
command line.

    debug_cli_test.py FUSOR
"""

import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

FUSOR = pathlib.Path(sys.argv.pop(1)).resolve()
FAULTY = FUSOR.with_name("fusor_with_faults")
SMALL = ["-a", "resnet20-cifar", "-b", "2", "--image-size", "8",
         "--num-classes", "10"]
BENCH = ["bench", *SMALL, "--warmup", "0", "--iterations", "2"]
# The first update makes the weights huge, so the second step overflows.
OVERFLOW = ["--wd", "1e30"]


def fusor(*args, fault=""):
    environment = dict(os.environ, INJECTED_FAULT=fault)
    return subprocess.run([FAULTY if fault else FUSOR, *map(str, args)],
                          capture_output=True, text=True, check=False,
                          env=environment)


class DebugCliTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_ok(self, *args, **options):
        result = fusor(*args, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def assert_rejected(self, code, message, *args, **options):
        result = fusor(*args, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertIn(message, result.stderr)
        errors = [line for line in result.stderr.splitlines()
                  if line.startswith("fusor: ")]
        self.assertEqual(len(errors), 1, result.stderr)

    def bisects(self, *args, **options):
        """Checks that `fusor bisect` finds a fault. It then exits with 1."""
        result = fusor("bisect", *args, **options)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr,
                         r"\nfusor: .*: found a fault; the reproducer is in ")
        return result

    def replay(self, fault=""):
        """Returns the exit code of the reproducer's command, run from another
        folder."""
        environment = dict(os.environ, INJECTED_FAULT=fault,
                           FUSOR=str(FAULTY if fault else FUSOR))
        return subprocess.run(
            [self.folder / "bug" / "command.sh"], capture_output=True,
            text=True, check=False, env=environment, cwd="/")

    def first_relu(self):
        text = self.run_ok("dump", *SMALL, "--emit", "graph").stdout
        return re.search(r'%"?([^ "]*)"? = relu\(', text).group(1)

    # --- edited kernels

    def dumped_kernel(self):
        """Returns the name and the LLVM IR file of a kernel."""
        self.run_ok("compile", *SMALL, "--dump-to", self.folder / "d")
        [file] = self.folder.glob("d/*/kernels/*.k_bn1_batch_norm_train_1.ll")
        return "k_bn1_batch_norm_train_1", file

    def loss(self, *args):
        result = self.run_ok("bench", *SMALL, "--warmup", "0", "--iterations",
                             "1", "--json", "-", *args)
        return json.loads(result.stdout)["loss"]

    def test_substituted_kernel_runs(self):
        name, file = self.dumped_kernel()
        self.assertEqual(self.loss("--substitute-kernel", f"{name}:{file}"),
                         self.loss())
        edited = self.folder / "edited.ll"
        edited.write_text(file.read_text().replace("fadd", "fsub"))
        self.assert_rejected(1, f"worst: {name}", "isolate", *SMALL,
                            "--substitute-kernel", f"{name}:{edited}")

    def test_substitute_kernel_mistakes(self):
        name, file = self.dumped_kernel()
        bad = self.folder / "bad.ll"
        stamp, code = file.read_text().split("\n", 1)
        bad.write_text(f"{stamp}\ndefine garbage")
        unnamed = self.folder / "none.ll"
        unnamed.write_text(code)
        other = self.folder / "other.ll"
        other.write_text(f"{stamp}\n" + code.replace("@fusor_p0", "@other"))
        typed = self.folder / "typed" / "other.ll"
        typed.parent.mkdir()
        typed.write_text(f"{stamp}\ndefine void @fusor_p0(ptr %a) {{\n"
                         "  ret void\n}\n")
        for message, value in [
                ("expected NAME:FILE", "k"),
                (f"did you mean {name}?", f"{name[:-1]}2:{file}"),
                ("missing.ll: No such file", f"{name}:missing.ll"),
                ("bad.ll:2:8: expected type", f"{name}:{bad}"),
                ("none.ll: does not belong to kernel", f"{name}:{unnamed}"),
                ("other.ll: expected function fusor_p0", f"{name}:{other}"),
                ("other.ll: function fusor_p0: expected void (ptr, i64, i64)",
                 f"{name}:{typed}")]:
            with self.subTest(message):
                self.assert_rejected(2, message, "bench", *SMALL,
                                    "--substitute-kernel", value)

    def test_variants_run_edited_against_unedited_kernels(self):
        name, file = self.dumped_kernel()
        edited = self.folder / "edited.ll"
        edited.write_text(file.read_text().replace("fadd", "fsub"))
        compare = ["compare", *SMALL, "--rounds", "0", "--a", "fusion=on",
                   "--json", self.folder / "j"]
        for text, same in ((file, True), (edited, False)):
            self.run_ok(*compare, "--b", f"substitute-kernel={name}:{text}")
            numbers = json.loads((self.folder / "j").read_text())[
                "comparisons"][0]["numbers"]
            self.assertEqual(numbers["bit_identical"], same)
            self.assertEqual(numbers["unedited"], [])

    def test_another_kernel_of_the_same_name_is_not_replaced(self):
        name, file = self.dumped_kernel()
        self.assert_rejected(
            2, f"variant fusion=off: {file}: does not belong to kernel {name}", "compare",
            *SMALL, "--rounds", "0", "--substitute-kernel", f"{name}:{file}")

    def test_training_with_evaluation_runs_an_edited_kernel(self):
        data = self.folder / "data"
        self.run_ok("data", "make-samples", "--out", data, "--train-images",
                    "4", "--val-images", "2")
        train = ["train", data, "-a", "resnet18", "-b", "4", "--image-size",
                 "32", "--iterations", "2"]
        self.run_ok(*train, "--training-only", "--dump-to", self.folder / "d",
                    "--dump-pass", "kernels")
        name = "k_bn1_batch_norm_train_1"
        [file] = self.folder.glob(f"d/m0000*/kernels/*.{name}.ll")
        result = self.run_ok(*train, "--substitute-kernel", f"{name}:{file}")
        self.assertIn("val top1", result.stdout)

    def test_bisect_ends_at_an_edited_kernel_and_keeps_it(self):
        name, file = self.dumped_kernel()
        edited = self.folder / "edited.ll"
        edited.write_text(file.read_text().replace("fadd", "fsub"))
        result = self.bisects(*SMALL, "--out", self.folder / "bug",
                              "--substitute-kernel", f"{name}:{edited}")
        self.assertIn(f"kernel    {name}", result.stdout)
        edited.unlink()
        self.assertEqual(self.replay().returncode, 1)

    # --- non-finite numbers

    def test_check_numerics_names_kernel_and_op(self):
        self.assert_rejected(3, "elements of", *BENCH, *OVERFLOW,
                            "--check-numerics", "fail")
        result = self.run_ok(*BENCH, *OVERFLOW, "--check-numerics", "warn")
        self.assertEqual(result.stderr.count("warning: run 1, kernel"), 1)
        self.assertRegex(result.stderr, r"kernel \w+ at \S+ \(models/resnet"
                         r"\.cc:\d+\): .*; first by \w+ of \S+ at \S+ "
                         r"\(models/resnet\.cc:\d+\)")
        self.run_ok(*BENCH, "--check-numerics", "fail")

    def test_check_numerics_dump_can_be_replayed(self):
        self.assert_rejected(3, "; see ", *BENCH, *OVERFLOW,
                            "--check-numerics", "dump",
                            "--dump-to", self.folder / "d")
        [snapshot] = self.folder.glob("d/numerics_*")
        self.run_ok("isolate", "--module", snapshot / "module.txt",
                    "--inputs", snapshot / "inputs.safetensors")

    def test_stats_trace_is_the_same_twice(self):
        traces = []
        for name in ("a", "b"):
            self.run_ok(*BENCH, "--stats-trace", self.folder / name)
            traces.append((self.folder / name).read_text())
        self.assertEqual(traces[0], traces[1])
        lines = [json.loads(line) for line in traces[0].splitlines()]
        self.assertEqual(lines[0]["fusor_stats_trace"], 1)
        self.assertEqual({line["run"] for line in lines[1:]}, {0, 1})
        self.assertEqual(lines[1]["op"], "input")

    def test_unwritable_trace_is_one_line(self):
        self.assert_rejected(2, "--stats-trace /no/such/file", *BENCH,
                            "--stats-trace", "/no/such/file")

    # --- isolated kernels

    def test_isolate_lists_every_step_worst_first(self):
        out = self.folder / "out.json"
        self.run_ok("isolate", *SMALL, "--json", out)
        steps = json.loads(out.read_text())["steps"]
        self.assertGreater(len(steps), 20)
        ratios = [s["error"] / s["tolerance"] for s in steps
                  if s["tolerance"] > 0]
        self.assertEqual(ratios, sorted(ratios, reverse=True))

    def test_isolate_and_bisect_find_wrong_code(self):
        out = self.folder / "steps.json"
        self.run_ok("isolate", *SMALL, "--json", out)
        # The kernel with the longest sums, the gradient of a normalisation.
        name = max((s for s in json.loads(out.read_text())["steps"]
                    if s["step"].startswith("k_")),
                   key=lambda s: s["reduction"])["step"]
        fault = f"kernel:{name}:mul"
        self.assert_rejected(1, f"worst: {name}", "isolate", *SMALL,
                            fault=fault)
        result = self.bisects(*SMALL, "--out", self.folder / "bug",
                              fault=fault)
        self.assertIn(f"kernel    {name}", result.stdout)
        self.assertEqual(self.replay(fault).returncode, 1)
        self.assertEqual(self.replay().returncode, 0, "without the bug")

    # --- bisection

    def test_bisect_finds_a_wrong_rewrite_and_the_replay_shows_it(self):
        relu = self.first_relu()
        fault = f"wrong:fuse_norm_activation:{relu}"
        out = self.folder / "out.json"
        self.bisects(*SMALL, "--out", self.folder / "bug",
                     "--static-loss-scale", "64", "--fusion-rounding", "eager",
                     "--json", out, fault=fault)
        found = json.loads(out.read_text())
        self.assertEqual(found["pass"], "fuse_norm_activation")
        self.assertEqual(found["subject"], relu)
        self.assertEqual(found["rewrite"], 1)
        self.assertLess(found["nodes"], 6)
        manifest = json.loads((self.folder / "bug/manifest.json").read_text())
        self.assertEqual(manifest["pass"], "fuse_norm_activation")
        # The replay must make the same decisions by the same flags.
        words = manifest["command"]
        for flag, value in (("--fusion-rounding", "eager"),
                            ("--static-loss-scale", "64")):
            self.assertEqual(words[words.index(flag) + 1], value)
        self.assertEqual(self.replay(fault).returncode, 1)
        self.assertEqual(self.replay().returncode, 0, "without the bug")

    def test_bisect_takes_a_small_model_unless_told(self):
        text = self.run_ok("bisect", "--help").stdout
        self.assertRegex(text, r"--batch-size INT=2 ")
        self.assertRegex(text, r"--image-size INT=64 ")
        self.run_ok("bisect", "-a", "resnet18", "--oracle", "crash",
                    "--disable-pass", "fuse", "--out", self.folder / "bug",
                    "--dump-to", self.folder / "d", "--dump-pass", "simplify")
        text = next(self.folder.glob("d/m*/0000.*.before.txt")).read_text()
        self.assertIn("%images = data : u8[2,64,64,3]", text)

    def test_bisect_survives_a_crash(self):
        relu = self.first_relu()
        fault = f"abort:fuse_norm_activation:{relu}"
        result = self.bisects(*SMALL, "--oracle", "crash",
                              "--out", self.folder / "bug", fault=fault)
        self.assertIn("pass      fuse_norm_activation", result.stdout)
        self.assertIn("SIGABRT", result.stdout)
        self.assertNotEqual(self.replay(fault).returncode, 0)
        self.assertEqual(self.replay().returncode, 0, "without the bug")

    def test_bisect_asks_a_script(self):
        script = self.folder / "oracle.sh"
        script.write_text('#!/bin/sh\nmodule=$1\nshift\n! "%s" opt "$module" '
                          '"$@" --pipeline forward | grep -q "relu=true"\n'
                          % FUSOR)
        script.chmod(0o755)
        result = self.bisects(*SMALL, f"--oracle=script:{script}",
                              "--out", self.folder / "bug")
        self.assertIn("pass      fuse_norm_activation", result.stdout)
        self.assertIn("rewrite   number 1,", result.stdout)
        self.assertEqual(self.replay().returncode, 1)

    def test_bisect_finds_nothing_in_a_correct_program(self):
        for oracle, precision in itertools.product(
                ("interpreter", "nan", "crash"), ((), ("--amp",))):
            with self.subTest(oracle=oracle, precision=precision):
                result = self.run_ok("bisect", *SMALL, *precision, "--oracle",
                                     oracle, "--out", self.folder / "bug")
                self.assertIn("nothing found", result.stdout)

    def test_mistakes_get_one_line(self):
        module = self.folder / "optimized.txt"
        module.write_text(
            self.run_ok("dump", *SMALL, "--emit", "optimized").stdout)
        for code, message, args in [
                (2, "expected interpreter, nan", ["--oracle", "guess"]),
                (2, "expected an executable file", ["--oracle", "script:/no/such"]),
                (2, "/no/such", ["--module", "/no/such"]),
                (2, "from before the passes", ["--module", module]),
                (2, "--out /proc/none", ["--out", "/proc/none"]),
                (5, "/no/such", ["--inputs", "/no/such"])]:
            with self.subTest(message):
                if "--out" not in args:
                    args += ["--out", self.folder / "bug"]
                model = () if "--module" in args else SMALL
                self.assert_rejected(code, message, "bisect", *model, *args)


if __name__ == "__main__":
    unittest.main()
