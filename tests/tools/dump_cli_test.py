#!/usr/bin/env python3
"""Tests --dump-to, fusor compile, dump and opt from the command line.

    dump_cli_test.py FUSOR
"""

import csv
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

FUSOR = pathlib.Path(sys.argv.pop(1))
DRAW = pathlib.Path(__file__).resolve().parent / "draw_page.js"
SMALL = ["-a", "resnet20-cifar", "-b", "4", "--num-classes", "10",
         "--kernel-cache", "off"]

# A sum over a constant too long for a dump, and an unused node.
MODULE = """graph tiny {
  %x = data : f32[20]
  %w = weight : f32[20]
  %c = constant() {dtype="f32", shape=[20], value=[VALUES]} : f32[20]
  %xw = mul(%x, %w) : f32[20] @"first"
  %again = mul(%x, %w) : f32[20] @"again"
  %sum = add(%xw, %again) : f32[20] @"first"
  %y = add(%sum, %c) : f32[20] @"second"
  %unused = exp(%y) : f32[20]
  %loss = reduce(%y) {dims=[0], kind="sum"} : f32[] @"loss"
  return %loss as "loss"
}
""".replace("VALUES", ",".join(str(i / 4 + 0.25) for i in range(20)))


def fusor(*args, text=None, prefix=(), fault="", **variables):
    variables = {name: str(value) for name, value in variables.items()}
    program = FUSOR.with_name("fusor_with_faults") if fault else FUSOR
    return subprocess.run(
        [*prefix, program, *map(str, args)], input=text,
        env=dict(os.environ, INJECTED_FAULT=fault, **variables),
        capture_output=True, text=True, check=False)


class CliTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.module = self.folder / "tiny.txt"
        self.module.write_text(MODULE)

    def run_ok(self, *args, **options):
        result = fusor(*args, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def assert_rejected(self, code, message, *args, **options):
        result = fusor(*args, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stderr.strip().count("\n"), 0, result.stderr)
        self.assertIn(message, result.stderr)
        return result

    def files(self, folder):
        """Maps relative paths to bytes."""
        return {p.relative_to(folder).as_posix(): p.read_bytes()
                for p in sorted(folder.rglob("*")) if p.is_file()}


class DumpTest(CliTest):

    def test_two_processes_write_the_same_bytes(self):
        folders = [self.folder / name for name in ("first", "second", "fixed")]
        for folder in folders:
            prefix = ()
            if folder.name == "fixed":
                if not shutil.which("setarch"):
                    continue
                prefix = ("setarch", platform.machine(), "-R")
            result = fusor("compile", *SMALL, "--dump-to", folder,
                           "--dump-format", "text,proto,dot,html",
                           prefix=prefix)
            if prefix and "failed to set personality" in result.stderr:
                continue  # not allowed in this container
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(self.files(folder), self.files(folders[0]))
        files = self.files(folders[0])
        for end in (".before.txt", ".after.pb", ".dot", ".html", ".ll", ".s",
                    "plan.pb", "memory.txt", "manifest.json"):
            self.assertTrue(any(f.endswith(end) for f in files), end)

    def test_a_dump_names_neither_machine_nor_path(self):
        folder = self.folder / "a_folder_with_a_name"
        self.run_ok("compile", *SMALL, "--fusion", "off", "--dump-to", folder,
                    "--dump-pass", "memory")
        manifest = json.loads((folder / "manifest.json").read_text())
        self.assertEqual(manifest["options"], {
            "--arch": "resnet20-cifar", "--batch-size": "4",
            "--num-classes": "10", "--fusion": "off", "--kernel-cache": "off",
            "--dump-pass": "memory"})
        for name, content in self.files(folder).items():
            self.assertNotIn(str(self.folder).encode(), content, name)

    def test_every_command_that_compiles_dumps(self):
        for name, *args in (("train", *SMALL, "--synthetic", "--iterations",
                             "1"),
                            ("bench", *SMALL, "--iterations", "1", "--warmup",
                             "0"),
                            ("dump", *SMALL), ("compile", *SMALL),
                            ("opt", self.module, "--emit", "plan"),
                            ("plan", *SMALL),
                            ("isolate", "--module", self.module),
                            ("bisect", "--module", self.module, "--out",
                             self.folder / "bug"),
                            ("compare", *SMALL, "--image-size", "8",
                             "--rounds", "0", "--b", "winograd=off")):
            with self.subTest(name):
                folder = self.folder / name
                self.run_ok(name, *args, "--dump-to", folder, "--dump-pass",
                            "^fuse$|plan")
                if name == "compare":
                    self.assertEqual({p.name for p in folder.iterdir()},
                                     {"v0.fusion_off", "v1.winograd_off"})
                    folder = folder / "v1.winograd_off"
                    manifest = json.loads(
                        (folder / "manifest.json").read_text())
                    self.assertEqual(manifest["options"]["variant"],
                                     "winograd=off")
                for file in ("plan.txt", "*.optimize.fuse.after.txt"):
                    self.assertTrue(list(folder.glob(f"m0000.*/{file}")), file)

    def test_a_dump_to_stdout_keeps_it_from_other_text(self):
        for name, *args in (("compile", *SMALL), ("plan", *SMALL),
                            ("isolate", "--module", self.module)):
            with self.subTest(name):
                text = self.run_ok(name, *args, "--dump-to", "-",
                                   "--dump-pass", "^plan$")
                self.assertTrue(text.startswith("// manifest.json\n{"), text)
                self.assertTrue(text.endswith("\n}\n"), text[-200:])
        self.assert_rejected(2, "at most one output on stdout", "compile",
                            *SMALL, "--dump-to", "-", "--json", "-")

    def test_decisions_are_a_table(self):
        folder = self.folder / "d"
        self.run_ok("compile", *SMALL, "--dump-to", folder, "--dump-pass",
                    "decisions")
        with open(next(folder.glob("m0000.*/decisions.csv"))) as file:
            rows = list(csv.DictReader(file))
        fused = [r for r in rows
                 if r["pass"] == "fuse" and r["accepted"] == "yes"]
        self.assertTrue(fused)
        for row in fused:
            self.assertLess(int(row["fused_ns"]), int(row["unfused_ns"]))
            self.assertRegex(row["source"], r"^models/resnet\.cc:\d+$")
        self.assertEqual({r["reason"] for r in fused},
                         {"producer and consumer", "consumers of one value",
                          "recomputed by its reader"})
        self.assertTrue(any(r["accepted"] == "no" and r["reason"]
                            for r in rows))

    def test_lines_of_the_model_are_kept_through_the_passes(self):
        folder = self.folder / "d"
        self.run_ok("compile", *SMALL, "--dump-to", folder, "--dump-format",
                    "text,dot,html")
        line = r'@"layer3\.1\.bn2" "models/resnet\.cc:\d+"'
        for name in ("0000.*.before.txt", "*.optimize.fuse.after.txt",
                     "plan.txt", "schedule.txt", "memory.txt"):
            text = next(folder.glob(f"m0000.*/{name}")).read_text()
            self.assertTrue(re.search(line, text), name)
        for name in ("launches.csv", "*.fuse.after.dot", "memory.html",
                     "*.fuse.after.html", "decisions.html"):
            text = next(folder.glob(f"m0000.*/{name}")).read_text()
            self.assertTrue("models/resnet.cc:" in text, name)
        self.check_order_of_layers(next(folder.glob("m0000.*/decisions.html")))
        # Lines that a module names are kept.
        self.module.write_text(MODULE.replace('@"second"',
                                              '@"second" "my/net.cc:7"'))
        text = self.run_ok("opt", self.module, "--pass", "fuse")
        self.assertIn('@"second" "my/net.cc:7"', text)
        self.assertNotIn('@"first" "', text)

    def check_order_of_layers(self, page):
        """A click on the title of a column sorts the layers by it."""
        def accepted(*clicks):
            drawn = subprocess.run(["node", DRAW, page, *clicks], text=True,
                                   capture_output=True, check=True).stdout
            return [int(number) for number in re.findall(
                r'<td class="name">[^<]+</td><td class="number">(\d+)</td>',
                drawn)]

        numbers = sorted(accepted())
        self.assertGreater(len(set(numbers)), 3)
        self.assertEqual(accepted("accepted"), numbers[::-1])
        self.assertEqual(accepted("accepted", "accepted"), numbers)

    def test_mixed_precision_is_counted_by_location(self):
        folder = self.folder / "d"
        text = self.run_ok("compile", *SMALL, "--amp", "--dump-to", folder,
                           "--dump-pass", "precision", "--json",
                           self.folder / "j")
        out = json.loads((self.folder / "j").read_text())
        self.assertGreater(out["casts"]["narrow"], 20)
        self.assertIn(f"{out['casts']['narrow']} casts to 16 bit", text)
        with open(next(folder.glob("m0000.*/precision.csv"))) as file:
            rows = {row["place"]: row for row in csv.DictReader(file)}
        self.assertEqual(int(rows["total"]["cast to bf16"]),
                         out["casts"]["narrow"])
        self.assertEqual(int(rows["total"]["computed in bf16"]),
                         out["mixed_ops"]["narrow"])
        self.assertIn("layer1.0", rows)
        text = self.run_ok("dump", *SMALL, "--amp")
        self.assertRegex(text, r"(?m)^  layer1.0 +\d+")
        self.assertNotIn("layer1.0", self.run_ok("dump", *SMALL))

    def test_stdout_takes_text(self):
        text = self.run_ok("compile", *SMALL, "--dump-to", "-", "--dump-pass",
                           "autodiff|schedule")
        self.assertRegex(text, r"// m0000\S*/\d+.training.autodiff.after.txt\n"
                               r"graph ")
        self.assertRegex(text, r"// m0000\S*/schedule.txt\n")
        self.assert_rejected(2, "expected --dump-to DIR", "compile", *SMALL,
                            "--dump-to", "-", "--dump-format", "proto")

    def test_bad_folders_and_filters_get_one_clear_line(self):
        used = self.folder / "used"
        used.mkdir()
        (used / "manifest.json").write_text("{}")
        for message, *flags in (
                ("dump folder /dev/null/x: ", "--dump-to", "/dev/null/x"),
                ("contains the dump of another run", "--dump-to", used),
                ("not a regular expression", "--dump-to", self.folder / "a",
                 "--dump-pass", "fuse("),
                ("not a regular expression", "--dump-to", self.folder / "b",
                 "--dump-module", "["),
                ("pass filter 'fuze': matches no name; expected a match for one "
                 "of simplify, fuse_norm_activation", "--dump-to", self.folder / "b",
                 "--dump-pass", "fuze"),
                ("pipeline filter 'x': matches no name; expected a match for one "
                 "of forward, training, optimize, codegen", "--dump-to",
                 self.folder / "b", "--dump-pipeline", "x"),
                ("expected --dump-to", "--dump-pass", "fuse"),
                ("--dump-format", "--dump-to", self.folder / "c",
                 "--dump-format", "svg")):
            with self.subTest(flags):
                result = self.assert_rejected(2, message, "compile", *SMALL,
                                             *flags)
                self.assertEqual(result.stdout, "")

    def test_a_filter_that_matches_no_module_is_reported(self):
        result = fusor("compile", *SMALL, "--dump-to", self.folder / "d",
                       "--dump-module", "m0007")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(
            result.stderr,
            "fusor: module filter: matches no module, nothing was dumped; "
            "expected one of m0000.resnet20_cifar\n")
        self.assertEqual(list(self.files(self.folder / "d")),
                         ["manifest.json"])

    def test_a_command_that_fails_leaves_no_dump(self):
        folder = self.folder / "d"
        for flags in (("--disable-pass", "fuze"), ("--fuel", "fuse"),
                      ("--module", self.folder / "none"),
                      ("--dump-pass", "fuse(")):
            result = fusor("compile", "--dump-to", folder, *flags)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertEqual(self.files(folder), {})
        self.run_ok("compile", *SMALL, "--dump-to", folder)

    def test_dump_prints_constants_in_full_and_dump_to_does_not(self):
        folder = self.folder / "d"
        self.run_ok("opt", self.module, "--pass", "simplify", "--dump-to",
                    folder)
        dumped = folder / "m0000.tiny/0000.named.simplify.before.txt"
        self.assertIn("<20 values>", dumped.read_text())
        self.assert_rejected(
            3, f"{dumped}:4:51: 20 values are left out here", "opt", dumped)
        full = self.run_ok("opt", self.module)
        self.assertIn("1.25,1.5,1.75", full)


    def test_both_sides_of_a_pass_that_fails_are_dumped(self):
        for name, *args in (("compile", *SMALL),
                            ("opt", self.module, "--pipeline", "all")):
            with self.subTest(name):
                folder = self.folder / name
                result = self.assert_rejected(
                    70, " of optimize) failed: ", name, *args,
                    "--dump-to", folder, "--dump-pass", "memory",
                    fault="throw:fuse:")
                after, before, error = sorted(folder.glob("m0000.*/*"))
                for file, end in ((after, "after"), (before, "before"),
                                  (error, "error")):
                    self.assertRegex(file.name,
                                     rf"^\d+\.optimize\.fuse\.{end}\.txt$")
                self.assertEqual("fusor: " + error.read_text(), result.stderr)
                # The pass can run again on its input.
                self.run_ok("opt", before, "--pass", "fuse")


    def test_a_pass_that_fails_verification_is_kept_unasked(self):
        for name, *args in (("compile", *SMALL, "--verify-each"),
                            ("opt", self.module, "--pipeline", "all",
                             "--verify-each")):
            with self.subTest(name):
                result = fusor(name, *args, fault="throw:fuse:",
                               TMPDIR=self.folder)
                self.assertEqual(result.returncode, 70, result.stderr)
                note, error = result.stderr.splitlines()
                folder = pathlib.Path(note.split(": ")[-1])
                self.assertEqual(folder.parent, self.folder)
                self.assertIn("pass fuse", note)
                _, before, message = sorted(folder.glob("m0000.*/*"))
                self.assertEqual("fusor: " + message.read_text().strip(),
                                 error)
                self.run_ok("opt", before, "--pass", "fuse")
                shutil.rmtree(folder)
        # A usage error is not a failure of a pass.
        result = fusor("compile", *SMALL, "--verify-each", "--fuel",
                       "autodiff=0", TMPDIR=self.folder)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(list(self.folder.glob("fusor-*")), [])


class CompileTest(CliTest):

    def test_counts_passes_and_memory(self):
        text = self.run_ok("compile", *SMALL, "--json", self.folder / "j")
        for word in ("resnet20_cifar for cpu-", "arenas", "temporary",
                     "training   autodiff"):
            self.assertIn(word, text)
        out = json.loads((self.folder / "j").read_text())
        self.assertEqual(out["fusions"]["bn_relu"], 10)
        self.assertEqual(out["arena_bytes"]["temporary"],
                         out["planned_peak_bytes"])
        self.assertEqual([p["pass"] for p in out["passes"]][:2],
                         ["simplify", "fuse_norm_activation"])

    def test_fusion_needs_no_more_memory_where_images_are_small(self):
        # A Winograd's workspace once took more memory than fusion saved.
        peak = {}
        for fusion in ("on", "off"):
            file = self.folder / fusion
            self.run_ok("compile", "-a", "resnet18", "-b", "4", "--image-size",
                        "64", "--fusion", fusion, "--json", file)
            peak[fusion] = json.loads(file.read_text())["planned_peak_bytes"]
        self.assertLess(peak["on"], peak["off"])

    def test_takes_modules_of_any_stage(self):
        folder = self.folder / "d"
        self.run_ok("compile", *SMALL, "--dump-to", folder, "--dump-format",
                    "proto", "--json", self.folder / "whole")
        whole = json.loads((self.folder / "whole").read_text())
        for name in ("0000.forward.simplify.before",
                     "*.training.simplify.after"):
            with self.subTest(name):
                file = next(folder.glob(f"m0000.*/{name}.pb"))
                self.run_ok("compile", "--module", file, "--kernel-cache",
                            "off", "--json", self.folder / "part")
                part = json.loads((self.folder / "part").read_text())
                for key in ("kernels", "library_calls", "planned_peak_bytes"):
                    self.assertEqual(part[key], whole[key], key)

    def test_compiles_for_other_devices(self):
        out = self.run_ok("compile", *SMALL, "--target", "cpu-avx2")
        self.assertIn("for cpu-avx2", out)
        self.assert_rejected(2, "did you mean", "compile", *SMALL, "--target",
                            "cpu-avx")

    def test_bad_modules_get_the_place(self):
        bad = self.folder / "bad.txt"
        for text, place in ((MODULE.replace("exp(%y)", "expp(%y)"), "9:13: "),
                            (MODULE.replace("return %loss", "return %los"),
                             "11:10: "),
                            (MODULE.replace('@"loss"', '@"loss" "net.cc"'),
                             "10:61: "),
                            ("", "1:1: ")):
            bad.write_text(text)
            self.assert_rejected(3, f"{bad}:{place}", "compile", "--module", bad)
        bad.write_bytes(b"\x00\x01\x02")
        self.assert_rejected(3, str(bad), "compile", "--module", bad)
        self.assert_rejected(2, "No such file", "compile", "--module",
                            self.folder / "none")
        self.assert_rejected(2, "--module and --arch: expected one of them", "compile", "--module", self.module,
                            "--arch", "resnet18")


class OptTest(CliTest):

    def test_runs_no_pass_unless_asked(self):
        self.assertEqual(self.run_ok("opt", self.module).count("mul("), 2)
        text = self.run_ok("opt", "-", "--pass", "simplify", text=MODULE)
        self.assertEqual(text.count("mul("), 1)
        self.assertNotIn("%unused", text)

    def test_runs_passes_and_pipelines_in_order(self):
        text = self.run_ok("opt", self.module, "--pass", "simplify",
                           "--pipeline", "training", "--pass", "fuse")
        self.assertIn("-> %w", text)
        self.assertIn("= fusion(", text)
        steps = self.run_ok("opt", self.module, "--pass", "simplify",
                            "--pipeline", "forward", "--pipeline", "training",
                            "--pipeline", "optimize", "--emit", "kernels")
        self.assertEqual(steps, self.run_ok("opt", self.module, "--emit",
                                            "kernels"))

    def test_emits_every_stage(self):
        for stage, sign in (("graph", "%unused"), ("train", "-> %w"),
                            ("optimized", "= fusion("), ("plan", "plan tiny"),
                            ("kernels", "kernel ")):
            with self.subTest(stage):
                self.assertIn(sign, self.run_ok("opt", self.module, "--emit",
                                                stage))

    def test_names_the_kernel_of_each_fusion(self):
        graph = self.run_ok("dump", *SMALL, "--emit", "optimized")
        kernels = self.run_ok("dump", *SMALL, "--emit", "kernels")
        names = re.findall(r"= fusion\(.*\{  // kernel (\S+)$", graph, re.M)
        self.assertEqual(len(names), graph.count("= fusion("))
        self.assertEqual(set(names), set(re.findall(r"^kernel (\w+)", kernels, re.M)))

    def test_lowers_a_dumped_graph_as_it_is(self):
        optimized = self.folder / "optimized.txt"
        optimized.write_text(self.run_ok("opt", self.module, "--emit",
                                         "optimized"))
        self.assertEqual(self.run_ok("opt", optimized, "--emit", "plan"),
                         self.run_ok("opt", self.module, "--emit", "plan"))

    def test_selects_and_limits_passes(self):
        everything = ("opt", self.module, "--pipeline", "all")
        self.assertNotIn("fusion(", self.run_ok(*everything, "--disable-pass",
                                                "fuse"))
        self.assertIn("mul(", self.run_ok(*everything, "--only-pass",
                                          "simplify"))
        # Nothing is merged or dropped.
        text = self.run_ok("opt", self.module, "--pass", "simplify", "--fuel",
                           "simplify=0")
        self.assertEqual(text.count("mul("), 2)
        for message, *flags in (
                ("unknown pass simplyfy; did you mean simplify?",
                 "--disable-pass", "simplyfy"),
                ("unknown pass fuze; did you mean fuse?", "--fuel", "fuze=1"),
                ("unknown pass nothing_like_it; there are simplify, ",
                 "--only-pass", "nothing_like_it"),
                ("unknown pass or pipeline nothing_like_it; there are all, "
                 "forward, training, optimize, simplify, ", "--pass",
                 "nothing_like_it"),
                ("--fuel fuse: expected PASS=N", "--fuel", "fuse"),
                ("--fuel fuse=-1: expected PASS=N", "--fuel", "fuse=-1"),
                ("unknown pass or pipeline trainng; did you mean training?",
                 "--pipeline", "trainng")):
            with self.subTest(flags):
                self.assert_rejected(2, message, *everything, *flags)

    def test_compares_with_the_interpreter(self):
        text = self.run_ok("opt", self.module, "--pipeline", "all",
                           "--reference", "interpreter", "--json",
                           self.folder / "j")
        self.assertRegex(text, r"max abs +max rel +relative +max ULP")
        self.assertRegex(text, r"(?m)  loss$")
        self.assertNotIn("graph tiny", text)
        out = json.loads((self.folder / "j").read_text())
        self.assertEqual(out["outputs"][0]["output"], "loss")
        text = self.run_ok("opt", self.module, "--reference", "interpreter",
                           "--emit", "graph")
        self.assertTrue(text.startswith("graph tiny"), text)

    def test_finds_a_wrong_rewrite(self):
        flags = ("opt", self.module, "--pass", "simplify", "--reference",
                 "interpreter")
        self.run_ok(*flags)
        result = fusor(*flags, fault="wrong:simplify:")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("output loss of tiny differs at element 0",
                      result.stderr)

    def test_a_difference_is_exit_code_1(self):
        # Lowering a normalisation changes the order of its sums.
        module = self.folder / "norm.txt"
        module.write_text("""graph norm {
  %x = data : f32[8,4,9,9]
  %gamma = norm_scale : f32[4]
  %beta = norm_shift : f32[4]
  %y, %mean, %var = batch_norm_train(%x, %gamma, %beta) {epsilon=1e-05} : f32[8,4,9,9], f32[4], f32[4]
  return %y as "y", %var as "var"
}""")
        result = fusor("opt", module, "--reference", "interpreter", "--pass",
                       "lower_batch_norm", "--tolerance", "0")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, r"fusor: output \w+ of norm differs at "
                                        r"element \d+: ")
        rows = [line.split() for line in result.stdout.splitlines()[1:]]
        self.assertEqual({row[4] for row in rows}, {"y", "var"})
        self.assertGreaterEqual(float(rows[0][1]), float(rows[1][1]))


if __name__ == "__main__":
    unittest.main()
