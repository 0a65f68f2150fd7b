"""Tests the programs from the command line: cli_test.py FOLDER, with fusor and
rn50 in FOLDER. A failing command must print one line on stderr, exit with the
code that the README lists, and leave nothing behind."""

import contextlib
import json
import os
import re
import shutil
import unittest

from cli_case import (CHECKPOINT, DATA, DEVICE, DIVERGED, GRAPH, MEMORY, TINY,
                      TINY_FILES, USAGE, CliTest)

COMMANDS = [["train"], ["eval"], ["predict"], ["bench"], ["compile"], ["run"],
            ["opt"], ["compare"], ["plan"], ["dump"], ["isolate"], ["bisect"],
            ["report"], ["scale"], ["launch"], ["data", "make-samples"],
            ["data", "decode"]]

PROGRAM_KEYS = {
    "parameters", "parameter_tensors", "forward_macs", "fusions", "casts",
    "mixed_ops", "counters", "kernels",
    "distinct_kernels", "library_calls", "weight_repacks", "bytes_moved",
    "planned_peak_bytes", "planned_lower_bound_bytes", "compile_seconds",
    "passes", "kernel_cache"}
DATA_KEYS = {"data_wait_share", "input_bound", "read_megabytes_per_second",
             "files_per_second"}
MEASURED_KEYS = {"images_per_second", "step_ms", "loss"} | DATA_KEYS


def segment(marker, body):
    return bytes([0xff, marker]) + (len(body) + 2).to_bytes(2, "big") + body


def scan(component_tables, first, last, approximation, data):
    return segment(0xda, bytes([1, 1, component_tables, first, last,
                                approximation])) + data


def many_scans():
    """Returns a valid grey JPEG of 8x8 pixels with 883 scans. Each scan adds
    one bit of a coefficient, which is zero."""
    # A single symbol, 0, of one bit: no difference, or end of block.
    table = bytes([1] + [0] * 15 + [0])
    jpeg = (b"\xff\xd8" + segment(0xdb, bytes([0] + [1] * 64))
            + segment(0xc2, bytes([8, 0, 8, 0, 8, 1, 1, 0x11, 0]))
            + segment(0xc4, b"\x00" + table) + segment(0xc4, b"\x10" + table))
    jpeg += scan(0, 0, 0, 0, b"\x7f")
    for k in range(1, 64):
        jpeg += scan(0, k, k, 13, b"\x7f")
        for bit in range(12, -1, -1):
            jpeg += scan(0, k, k, (bit + 1) << 4 | bit, b"\x7f")
    return jpeg + b"\xff\xd9"


def resized(jpeg, width, height):
    """Returns the file with another size in its header."""
    at = jpeg.index(b"\xff\xc0") + 5
    return (jpeg[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big")
            + jpeg[at + 4:])


class ArgumentsTest(CliTest):

    def test_every_numeric_flag_names_its_range(self):
        """Every flag rejects what is not a number and reports its range in
        fusor's words, not the parser library's. Nothing runs, because the last
        flag is unknown."""
        seen = set()  # commands that share a flag share its help
        for command in COMMANDS:
            text = self.succeeds(*command, "--help").stdout
            for flag, about in re.findall(
                    r"^ +(?:-\w,)*(--[\w-]+)\S* (?:U?INT|FLOAT)(.*)", text,
                    re.M):
                if (flag, about) in seen:
                    continue
                seen.add((flag, about))
                for value in ("nan", "-7"):
                    with self.subTest(command=command, flag=flag, value=value):
                        words = self.fails(USAGE, [], *command,
                                           f"{flag}={value}", "--no-such-flag")
                        self.assertLess(len(words), 200)
                        self.assertNotIn("not in range", words)
                        if value != "-7":
                            self.assertNotIn("unknown flag", words)
        self.assertGreater(len(seen), 60)

    def test_help_names_the_program(self):
        for args, usage in [
                (["--help"], "Usage: fusor [OPTIONS] SUBCOMMAND"),
                (["train", "--help"], "Usage: fusor train [OPTIONS] [DATA]"),
                (["data", "decode", "-h"], "Usage: fusor data decode ")]:
            self.assertIn(usage, self.succeeds(*args).stdout)
        self.assertIn("Usage: rn50 [OPTIONS] [DATA]",
                      self.succeeds("--help", program="rn50").stdout)

    def test_every_program_and_command_prints_its_version(self):
        for program, *args in (["fusor"], ["rn50"], ["fusor", "train"],
                               ["fusor", "data", "decode"]):
            text = self.succeeds(*args, "--version", program=program).stdout
            self.assertRegex(
                text, rf"\A{program} \d+\.\d+\.\d+\nbuild: [0-9a-f]+\n"
                      r"backends: (\w+, )*null\nlibraries: fusor doctor\n\Z")
        for program, *args in (["fusor"], ["rn50"]):
            self.assertIn("--version", self.succeeds(
                *args, "--help", program=program).stdout)

    def test_the_last_of_several_values_takes_precedence(self):
        def options(*args):
            folder = self.folder / "dump"
            self.succeeds("compile", "-a", "resnet18", "--arch",
                          "resnet20-cifar", "-b", "4", "--amp", "--amp",
                          "--image-size", "8", "-b2", *args, "--dump-to",
                          self.folder / "none", "--dump-to", folder,
                          "--dump-pass", "^plan$")
            self.assertFalse((self.folder / "none").exists())
            return json.loads((folder / "manifest.json").read_text())[
                "options"]

        given = options("--fusion=off", "--fusion", "on", "--mean", "1,2,3",
                        "--mean", "4,5,6", "--disable-pass", "simplify",
                        "--disable-pass", "fuse_updates")
        self.assertEqual(given, {
            "--arch": "resnet20-cifar", "--batch-size": "2", "--amp": "true",
            "--image-size": "8", "--mean": "4,5,6",
            # Values of a list accumulate.
            "--disable-pass": "simplify,fuse_updates",
            "--dump-pass": "^plan$"})
        self.fails(USAGE, ["--batch-size: expected a whole number"],
                   "compile", "-b", "x", "-b", "2")
        self.fails(USAGE, ["--mean: expected 3 values, got 4"],
                   "compile", "--mean", "1,2,3,4")

    def test_switches_in_the_environment_are_parsed_alike(self):
        for word in ("yes", "TRUE", "on", "1", "No", "false", "off", "0", ""):
            self.succeeds("compile", "-a", "resnet20-cifar", "-b", "2",
                          variables={"FUSOR_VERIFY": word})
        self.fails(USAGE, ["FUSOR_VERIFY: expected 1, yes, true or on",
                           "got maybe"],
                   "doctor", variables={"FUSOR_VERIFY": "maybe"})

    def test_full_verification_poisons_memory(self):
        """The null backend computes nothing, so the loss is what its memory
        held before the step."""
        run = (*TINY, "--iterations", "1", "--backend", "null")
        off = {"FUSOR_VERIFY": "0"}
        for quiet in (), ("--verify-each",):
            self.assertIn("loss 0.0000", self.succeeds(
                *run, *quiet, "--print-freq", "1", variables=off).stdout)
        self.fails(DIVERGED, ["loss is nan"], *run, "--verify", variables=off)
        self.fails(DIVERGED, ["loss is nan"], *run,
                   variables={"FUSOR_VERIFY": "1"})

    def test_unknown_names_come_with_the_nearest_known(self):
        for words, args in [
                (["trian: unknown command", "did you mean train?"], ["trian"]),
                (["decoed", "of data", "did you mean decode?"],
                 ["data", "decoed"]),
                (["--batchsize: unknown flag of train",
                  "did you mean --batch-size?"], ["train", "--batchsize=4"]),
                (["--warm: unknown flag of bench", "did you mean --warmup?"],
                 ["bench", "--warm", "4"]),
                (["arch resnet51", "did you mean resnet50?"],
                 ["train", "--synthetic", "--arch", "resnet51"]),
                (["--lr-schedule: expected constant, step, linear, cosine, "
                  "polynomial, got cosin",
                  "did you mean cosine?"], ["train", "--lr-schedule", "cosin"]),
                (["fuse_update", "did you mean fuse_updates?"],
                 ["dump", "--arch", "resnet20-cifar", "--disable-pass",
                  "fuse_update"]),
                (["did you mean --num-classes?"], ["train", "--nun-cl", "4"]),
                (["-q: unknown flag of train\n"], ["train", "-q"]),
                (["--decision: unknown flag of train\n"],
                 ["train", "--decision"]),
                (["did you mean --fusion?"], ["train", "--fusoin", "on"]),
                (["extra: unexpected argument"], ["train", "data", "extra"])]:
            with self.subTest(args=args):
                self.fails(USAGE, words, *args)
        self.fails(USAGE, ["--epoch: ", "did you mean --epochs?"], "--epoch",
                   "3", program="rn50")

    def test_unsupported_bn_lowerings_are_rejected(self):
        self.fails(GRAPH, ["bn-lowering statistics: cpu-",
                           "no convolutions for this step with statistics of "
                           "their result"],
                   "compile", "--arch", "resnet20-cifar", "--bn-lowering",
                   "statistics")
        self.fails(USAGE, ["--bn-lowering gradients: expected separate or "
                           "kernels with --fusion off"],
                   "compile", "--arch", "resnet20-cifar", "--bn-lowering",
                   "gradients", "--fusion", "off")
        self.fails(USAGE, ["--bn-lowering: expected auto, separate, "], 
                   "compile", "--bn-lowering", "vendor")
        self.succeeds("compile", "--arch", "resnet20-cifar", "-b", "2",
                      "--bn-lowering", "separate", "--verify")

    def test_an_unknown_backend_is_a_missing_device(self):
        self.fails(DEVICE, ["backend gpu", "did you mean cpu?"], *TINY,
                   "--backend", "gpu")

    def test_bad_values_are_named_with_what_was_expected(self):
        for words, args in [
                (["--lr: expected a number of at least 0, got fast"],
                 ["--lr", "fast"]),
                (["--lr: ", "got nan"], ["--lr", "nan"]),
                (["--lr: expected a value, got none"], ["--lr"]),
                (["--batch-size: expected a whole number from 1", "got 0"],
                 ["-b", "0"]),
                (["--batch-size: ", "got 1.5"], ["-b", "1.5"]),
                (["--seed: ", "got -1"], ["--seed", "-1"]),
                (["--mean: expected 3 values, got 2"], ["--mean", "1,2"]),
                (["--mean: expected a number from 0 to 255, got red"],
                 ["--mean", "red", "2", "3"]),
                (["--std: expected a number from 1 to 255, got 0.229"],
                 ["--std", "0.229", "0.224", "0.225"])]:
            with self.subTest(args=args):
                self.fails(USAGE, words, "train", *args)
        self.succeeds(*TINY, "--iterations", "1", "--mean", "100,110,120",
                      "--std", "50", "60", "70")

    def test_a_variable_gives_flags_to_the_commands_that_have_them(self):
        compile_small = ("compile", "-a", "resnet20-cifar", "-b", "2")

        def succeeds(flags, *args, **options):
            return self.succeeds(*args, variables={"FUSOR_FLAGS": flags},
                                 **options).stdout

        folder = self.folder / "dump"
        succeeds(f"--dump-to {folder} --fusion=off --iterations 3 "
                 "--dump-pass=^plan$", *compile_small)
        manifest = json.loads((folder / "manifest.json").read_text())
        self.assertEqual(manifest["options"]["--fusion"], "off")
        # The command line takes precedence, by any name of a flag.
        self.assertIn("1 threads",
                      succeeds("--threads 2", *compile_small, "--threads=1"))
        self.assertIn(" 738 nodes", succeeds(
            "--arch resnet20-cifar", "compile", "-aresnet50", "-b", "1"))
        self.assertIn("trained   1 step in", succeeds(
            "--iterations 1 --training-only", "--synthetic", "-b", "1",
            "--image-size", "32", program="rn50"))
        self.assertRegex(succeeds("--verify", "--version"), r"\Afusor \d+\.\d+")
        for flags, words in [
                ("--dumpto /x", ["FUSOR_FLAGS: --dumpto: no command has"]),
                ("-b 4", ["FUSOR_FLAGS: -b: expected flags by their long"]),
                ("--verify yes", ["FUSOR_FLAGS: --verify: expected no value"]),
                ("--threads x", ["--threads: expected a whole number",
                                 '(FUSOR_FLAGS="--threads x")'])]:
            with self.subTest(flags):
                self.fails(USAGE, words, *compile_small,
                           variables={"FUSOR_FLAGS": flags})

    def test_missing_arguments_are_named(self):
        self.fails(USAGE, ["expected a command: train, eval, predict"])
        self.fails(USAGE, ["data: expected a command: decode"], "data")
        self.fails(USAGE, ["an image folder or --synthetic, got neither"],
                   "train")
        self.fails(USAGE, ["an image folder or --synthetic, got both"],
                   *TINY, self.samples)
        self.fails(USAGE, ["--weihgts: unknown flag of eval, did you mean "
                           "--weights?"], "eval", "data", "--weihgts", "w")
        self.fails(USAGE, ["eval: expected --weights, got none"], "eval",
                   self.samples)
        self.fails(USAGE, ["--synthetic: unknown flag of eval"], "eval",
                   "--weights", "w", "--synthetic")

    def test_an_empty_value_is_rejected(self):
        for name, args in [
                ("--workspace", [*TINY, "--workspace", ""]),
                ("--json", ["bench", "--json", ""]),
                ("--output", ["compile", "-o", ""]),
                ("DATA", [*TINY_FILES, ""]),
                ("FILE", ["run", ""])]:
            with self.subTest(name):
                self.fails(USAGE, [f"{name}: expected a value, got an empty "
                                   "one"], *args)

    def test_an_image_size_below_the_models_is_rejected(self):
        self.fails(GRAPH, ["resnet18", "image size 16", "at least 32"],
                   "train", "--synthetic", "--arch", "resnet18",
                   "--image-size", "16")

    def test_fewer_classes_than_the_data_has_are_rejected(self):
        self.fails(USAGE, ["--num-classes", "the 5 classes", "got 3"],
                   *TINY_FILES, self.samples, "--num-classes", "3")

    def test_a_batch_beyond_memory_is_rejected_with_one_that_fits(self):
        for data in ["--synthetic"], [self.copy_samples(), "--training-only",
                                      "--train-transform",
                                      "random-resized-crop"]:
            message = self.fails(
                MEMORY, ["batch size 1048576 does not fit", " need"], "train",
                *data, "--arch", "resnet20-cifar", "-b", "1048576")
            fits = int(re.search(r"does not fit; batch size (\d+) fits", message)[1])
            self.assertGreater(fits, 1)
            self.assertLess(fits, 1048576)


class DataTest(CliTest):

    def test_a_folder_that_is_not_there_or_is_a_file(self):
        self.fails(DATA, ["/nowhere: no such file or folder"], *TINY_FILES, "/nowhere")
        file = self.folder / "file"
        file.write_text("")
        self.fails(DATA, [f"{file}: expected a folder or a data set"], *TINY_FILES, file)

    def test_folders_without_classes_or_images(self):
        self.fails(DATA, [str(self.folder), "one folder per class, got none"],
                   *TINY_FILES, self.folder)
        (self.folder / "train/cat").mkdir(parents=True)
        self.fails(DATA, ["no image in 1 of 1 class folders", "'cat'"],
                   *TINY_FILES, self.folder)

    def test_names_with_line_breaks_take_one_line(self):
        data = self.copy_samples()
        (data / "train/discs/a\n\x1b[1mb.jpg").write_bytes(b"hello")
        self.fails(DATA, [r"a\x0a\x1b[1mb.jpg: expected JPEG, PNG, WebP"],
                   *TINY_FILES, data, "-b", "21")

    def test_a_single_class_is_rejected(self):
        shutil.copytree(self.samples / "train/discs",
                        self.folder / "train/discs")
        self.fails(DATA, [f"{self.folder}/train", "at least 2 classes",
                          "only 'discs'"], *TINY_FILES, self.folder)

    def test_other_classes_in_val_than_in_train(self):
        data = self.copy_samples()
        (data / "val/discs").rename(data / "val/disks")
        self.fails(DATA, [f"{data}/val", "expected 'discs'", "got 'disks'"],
                   "train", data, "--arch", "resnet20-cifar", "-b", "4")

    def test_images_of_another_size_than_the_models(self):
        self.fails(DATA, [".jpg: expected 32x32 pixels, got "], "train",
                   self.samples, "--arch", "resnet20-cifar", "-b", "4")

    def test_evaluation_images_are_checked_before_the_first_step(self):
        run = ("train", "--arch", "resnet20-cifar", "-b", "4", "--iterations",
               "1", "--train-transform", "random-resized-crop")
        crop = ("--val-transform", "centre-crop")
        data = self.copy_samples()
        result = self.call(*run, data)
        self.assertEqual(result.returncode, DATA)
        self.assertEqual(result.stdout, "")
        self.assertRegex(
            result.stderr, r"\Afusor: image .*/val/.*\.jpg: expected 32x32 "
            r"pixels, got [^\n]*; use --val-transform centre-crop to resize\n\Z")
        for args in (crop, (*crop, "--val-resize-size", "48"),
                     ("--val-resize-size", "48", "--val-crop-size", "40")):
            self.assertIn(" val top1 ", self.succeeds(*run, data, *args).stdout)
        for words, args in (
                (["--val-transform exact and --val-resize-size"],
                 ("--val-transform", "exact", "--val-resize-size", "40")),
                (["--val-resize-size 31: expected at least the crop's 32"],
                 ("--val-resize-size", "31"))):
            self.fails(USAGE, words, *run, data, *args)
        # For other transforms, only the first image of each class is checked.
        first = sorted((data / "val/discs").iterdir())[0]
        first.write_bytes(b"II*\0....")
        result = self.call(*run, data, *crop)
        self.assertEqual((result.returncode, result.stdout), (DATA, ""))
        self.assertIn("PPM or PGM, got TIFF", result.stderr)

    def test_bad_images_are_named(self):
        for words, content in [
                (["PPM or PGM, got 5 bytes"], b"hello"),
                (["the file is empty"], b""),
                (["truncated JPEG"], self.jpeg[:len(self.jpeg) // 2]),
                (["65500x65500 pixels", "at most 178956970"],
                 resized(self.jpeg, 65500, 65500)),
                (["JPEG with more than 500 scans"], many_scans())]:
            with self.subTest(words=words):
                bad = self.folder / "data/train/discs/bad.jpg"
                with contextlib.suppress(FileNotFoundError):
                    shutil.rmtree(self.folder / "data")
                self.copy_samples()
                bad.write_bytes(content)
                # The batch contains every image.
                self.fails(DATA, [str(bad), *words], *TINY_FILES,
                           self.folder / "data", "-b", "21")
                self.fails(DATA, [str(bad), *words], "data", "decode", bad,
                           "--out", self.folder)

    def test_an_image_that_cannot_be_read(self):
        bad = self.copy_samples() / "train/discs/bad.jpg"
        bad.symlink_to(self.folder / "nothing")
        self.fails(DATA, [f"cannot read {bad}", "No such file"], *TINY_FILES,
                   self.folder / "data", "-b", "21")

    def test_bad_images_are_skipped_on_demand_and_named(self):
        bad = self.copy_samples() / "train/discs/bad.jpg"
        bad.write_bytes(b"hello")
        result = self.succeeds(*TINY_FILES, self.folder / "data", "-b", "21",
                               "--bad-record", "skip")
        self.assertRegex(result.stderr, r"\Awarning: skipped: image .*bad\.jpg")
        self.assertEqual(result.stderr.count("\n"), 1)

    def test_more_images_in_a_batch_than_there_are(self):
        self.fails(DATA, ["one batch of 64", "got 20 training samples"],
                   *TINY_FILES, self.samples, "-b", "64")

    def test_decoding_writes_pixels_only_to_its_folder(self):
        image = self.samples / "train/discs/0000.jpg"
        self.succeeds("data", "decode", image, "--out", self.folder / "a/b")
        ppm = (self.folder / f"a/b/{image.stem}.ppm").read_bytes()
        self.assertTrue(ppm.startswith(b"P6\n"))
        file = self.folder / "file"
        file.write_text("")
        self.fails(USAGE, [f"--out: cannot create folder {file}/a"], "data",
                   "decode", image, "--out", file / "a")
        twin = self.samples / "val/discs/0000.jpg"
        self.fails(USAGE, ["both would be written to"], "data", "decode",
                   image, twin, "--out", self.folder)
        self.fails(DATA, ["cannot read /nowhere.jpg"], "data", "decode",
                   "/nowhere.jpg", "--out", self.folder)

    def test_samples_overwrite_nothing(self):
        (self.folder / "mine").write_text("")
        self.fails(DATA, [str(self.folder)], "data", "make-samples", "--out",
                   self.folder)


class FilesTest(CliTest):

    def test_results_that_cannot_be_written_fail_before_the_work(self):
        file = self.folder / "file"
        file.write_text("")
        for reason, place in [("No such file", self.folder / "no/a.json"),
                              ("Not a directory", file / "a.json"),
                              ("Is a directory", self.folder)]:
            for command in (TINY, ["bench", *TINY[1:]],
                            ["dump", "--arch", "resnet20-cifar"],
                            ["eval", self.samples, "--weights", "none"]):
                with self.subTest(command=command[0], place=place):
                    process = self.start(*command, "--json", place)
                    stdout, stderr = process.communicate(timeout=100)
                    self.assertEqual(process.returncode, USAGE, stderr)
                    self.assertEqual(stdout, "")
                    self.assertEqual(
                        stderr,
                        f"fusor: --json: cannot write {place}: {reason}"
                        + (" or directory\n" if "such" in reason else "\n"))
        self.assertEqual(self.listing(), [file])

    def test_a_workspace_that_cannot_be_made_fails_before_the_work(self):
        file = self.folder / "file"
        file.write_text("")
        self.fails(USAGE, ["--workspace", str(file)], *TINY, "--workspace",
                   file / "out")
        (self.folder / "out/model.safetensors").mkdir(parents=True)
        self.fails(USAGE, ["model.safetensors: Is a directory"], *TINY,
                   "--workspace", self.folder / "out")

    def test_paths_that_lead_nowhere(self):
        loop = self.folder / "logs/loop"
        loop.parent.mkdir()
        loop.symlink_to(loop)
        for path, reason in [(loop, "Too many levels of symbolic links"),
                             (self.folder / ("x" * 300), "File name too long")]:
            self.fails(CHECKPOINT, [f"--resume {path}: {reason}"], *TINY,
                       "--resume", path)
            self.fails(USAGE, ["unknown cluster"], "scale", "--cluster", path)
            self.fails(DEVICE, [f"backend cpu: no file {path}/"], *TINY,
                       variables={"FUSOR_BACKEND_DIR": str(path)})
        self.fails(DATA, ["found none"], "report", self.folder / "logs")

    def test_weights_that_do_not_fit(self):
        cifar = ("eval", self.samples, "--arch", "resnet20-cifar", "-b", "2")
        self.fails(CHECKPOINT, ["/nowhere", "No such file"], *cifar,
                   "--weights", "/nowhere")
        weights = self.folder / "model.safetensors"
        weights.write_bytes(b"hello")
        self.fails(CHECKPOINT, [str(weights)], *cifar, "--weights", weights)
        self.succeeds(*TINY, "--iterations", "1", "--workspace", self.folder)
        self.fails(CHECKPOINT, [f"{weights}: tensor fc.weight: expected",
                                "f32[5,64], got f32[10,64]"],
                   *cifar, "--weights", weights, "--allow-mismatch")
        self.fails(CHECKPOINT, [f"{weights}: tensor"], "eval", self.samples,
                   "--arch", "resnet18", "--image-size", "32", "-b", "2",
                   "--weights", weights, "--allow-mismatch")
        whole = weights.read_bytes()
        weights.write_bytes(whole[:len(whole) // 2])
        self.fails(CHECKPOINT, [str(weights)], *cifar, "--num-classes", "10",
                   "--weights", weights)

    def test_full_disks_are_noticed(self):
        with open("/dev/full", "w") as full:
            for args in ["doctor"], ["--version"], ["train", "--help"]:
                self.fails(USAGE, ["cannot write to stdout", "No space left"],
                           *args, stdout=full)
            self.fails(USAGE, ["cannot write to stdout", "No space left"],
                       "dump", "--arch", "resnet50", "-b", "1", "--emit",
                       "graph", stdout=full)
        link = self.folder / "full"
        link.symlink_to("/dev/full")
        self.fails(USAGE, [f"cannot write {link}: No space left"], "scale",
                   "--json", link)

    def test_a_closed_stdout_becomes_no_other_file(self):
        log = self.folder / "log"
        result = self.call(*TINY, "--iterations", "2", "--log-jsonl", log,
                           preexec_fn=lambda: os.close(1))
        self.assertEqual(result.returncode, USAGE)
        self.assertEqual(result.stderr, "fusor: cannot write to stdout: Bad "
                                        "file descriptor\n")
        self.assertEqual(
            [json.loads(line)["type"] for line in log.read_text().splitlines()],
            ["start", "step", "step", "end"])


class OutputTest(CliTest):

    def expect_keys(self, report, keys):
        self.assertEqual(keys - report.keys(), set())

    def expect_program(self, report):
        self.expect_keys(report, PROGRAM_KEYS)
        fusions = report["fusions"]
        self.expect_keys(fusions, {
            "bn_relu", "bn_add_relu", "dual_bn_add_relu", "bn_relu_grad",
            "bn_add_relu_grad", "dual_bn_add_relu_grad"})
        self.assertEqual(sum(fusions["by_kind"].values()), fusions["total"])
        phases = dict(report["compile_seconds"])
        total = phases.pop("total")
        self.assertAlmostEqual(sum(phases.values()), total, delta=1e-6)

    def test_training_and_evaluation_report_the_stable_keys(self):
        size = ("--arch", "resnet18", "--image-size", "32", "-b", "5")
        trained = self.json_of("train", self.samples, *size, "--epochs", "1",
                               "--workspace", self.folder)
        self.expect_program(trained)
        self.expect_keys(trained, MEASURED_KEYS | {"top1", "top5", "losses"})
        self.assertEqual(trained["steps"], 4)
        self.assertEqual(trained["step_ms"].keys(), {"median", "min", "max"})
        self.assertGreater(trained["read_megabytes_per_second"], 0)
        self.assertGreater(trained["files_per_second"], 0)
        evaluated = self.json_of(
            "eval", self.samples, *size, "--weights",
            self.folder / "model.safetensors")
        self.expect_program(evaluated)
        self.expect_keys(evaluated, DATA_KEYS | {
            "images_per_second", "loss", "top1", "top5", "images"})
        self.assertAlmostEqual(evaluated["loss"], trained["evaluations"][-1][
            "loss"], places=3)
        # The same by the flag of published scripts.
        only = ("train", self.samples, *size, "--evaluate", "--workspace",
                self.folder)
        for weights in (("--resume", "auto"), ("--pretrained-weights",
                                               self.folder / "model.safetensors")):
            repeated = self.json_of(*only, *weights)
            self.assertAlmostEqual(repeated["loss"], evaluated["loss"],
                                   places=3)
        self.fails(USAGE, ["--evaluate: expected DATA with validation images, "
                           "got --training-only"], *only, "--training-only")

    def test_benchmarks_report_the_stable_keys(self):
        size = ("--arch", "resnet20-cifar", "-b", "4", "--warmup", "1",
                "--iterations", "3")
        synthetic = self.json_of("bench", *size)
        self.expect_program(synthetic)
        self.expect_keys(synthetic, MEASURED_KEYS)
        self.assertFalse(synthetic["input_bound"])
        real = self.json_of("bench", self.samples, *size, "--train-transform",
                            "random-resized-crop")
        self.expect_program(real)
        self.expect_keys(real["data"], MEASURED_KEYS | {"ratio_to_synthetic"})

    def test_finds_the_largest_batch(self):
        search = ("bench", "--arch", "resnet20-cifar", "--find-max-batch",
                  "--memory", "195")
        found = self.json_of(*search)
        self.assertGreater(found["batch_size"], 10)
        self.assertEqual(found["free_bytes"], 195 << 20)
        self.assertLessEqual(found["needed_bytes"], found["free_bytes"])
        self.assertEqual(
            found["needed_bytes"],
            found["data_bytes"] + found["runtime_bytes"]
            + sum(found["arena_bytes"].values()))
        # Weights, momentum and running statistics.
        saving = found["saving"]
        self.assertAlmostEqual(saving["copy_bytes"],
                               found["arena_bytes"]["state"], delta=20 << 10)
        self.assertLess(saving["batch_size"], found["batch_size"])
        self.assertGreater(saving["batch_size"], 10)
        self.assertIn(f"batch size {found['batch_size'] + 1}: plan "
                      "resnet20_cifar needs", found["binds"])
        self.assertIn("largest at the peak", found["binds"])
        self.fails(MEMORY, ["batch size 1 does not fit: plan vgg16 needs"],
                   "bench", "--arch", "vgg16", *search[3:])
        self.fails(USAGE, ["--find-max-batch and DATA"], *search, self.samples)
        self.fails(USAGE, ["requires --find-max-batch"], "bench", "--memory",
                   "9")

    def test_dumps_report_the_stable_keys(self):
        file = self.folder / "a.json"
        self.succeeds("dump", "--arch", "resnet18", "-b", "2", "--image-size",
                      "32", "--json", file)
        report = json.loads(file.read_text())
        self.expect_program(report)
        self.assertEqual(report["parameters"], 11689512)
        self.assertEqual(report["parameter_tensors"], 62)
        self.assertEqual(report["fusions"]["bn_relu"], 9)
        self.assertEqual(report["fusions"]["bn_relu_grad"], 9)
        self.assertEqual(report["casts"], {"narrow": 0, "wide": 0})

    def test_json_is_the_only_text_on_stdout(self):
        size = ("--arch", "resnet20-cifar", "-b", "2", "--image-size", "8",
                "--num-classes", "10")
        module = self.folder / "model.txt"
        module.write_text(self.succeeds("dump", *size, "--emit",
                                        "graph").stdout)
        for key, *command in [
                ("passes", "compile", *size), ("kernels", "dump", *size),
                ("variants", "compare", *size, "--rounds", "0"),
                ("steps", "plan", *size), ("steps", "isolate", *size),
                ("outputs", "opt", module, "--pass", "simplify",
                 "--reference", "interpreter")]:
            with self.subTest(command=command[0]):
                self.assertIn(key, self.json_of(*command))

    def test_the_published_command_line_runs(self):
        """The command line of issue 5, smaller and on noise."""
        text = self.succeeds(
            "train", "/data", "-b", "4", "--amp", "--lr", "1.024",
            "--lr-schedule", "cosine", "--warmup", "8", "--label-smoothing",
            "0.1", "--mixup", "0.2", "--mom", "0.875", "--wd",
            "3.0517578125e-05", "--arch", "resnet18", "--image-size", "32",
            "-c", "fanin", "--prof", "3", "--training-only",
            "--no-checkpoints", "--raport-file", "r.json", "-p", "1", "-j",
            "8", "--workspace", self.folder, "--data-backend", "syntetic",
            "--memory-format", "nhwc", "--gather-checkpoints", "--epochs", "1",
            "--log-format", "dll").stdout
        self.assertIn("ignored   --memory-format (the compiler chooses the "
                      "layouts), --gather-checkpoints (see "
                      "--keep-checkpoints)\n", text)
        self.assertEqual(re.findall(
            r"^DLL [\d-]+ [\d:.]+ - Epoch: 0 Iteration: (\d)  train\.loss : "
            r"\d+\.\d{5}  train\.total_ips : \d+\.\d\d img/s$", text, re.M),
            ["1", "2", "3"])
        self.assertEqual([p.name for p in self.folder.iterdir()], ["r.json"])
        logged = [json.loads(line[5:]) for line in
                  (self.folder / "r.json").read_text().splitlines()]
        steps = [entry["step"] for entry in logged if entry["type"] == "LOG"]
        self.assertEqual(steps, ["PARAMETER", [0, 1], [0, 2], [0, 3], []])

    def test_logs_are_written_and_bad_ones_rejected(self):
        run = (*TINY, "--iterations", "3", "--print-freq", "1")
        self.succeeds(*run, "--log-jsonl", self.folder / "l", "--tensorboard",
                      self.folder / "t", "--prometheus", self.folder / "p")
        lines = [json.loads(line) for line in
                 (self.folder / "l").read_text().splitlines()]
        self.assertEqual([line["type"] for line in lines],
                         ["start", "step", "step", "step", "end"])
        self.assertEqual(len(list((self.folder / "t").iterdir())), 1)
        self.assertIn("\nfusor_train_step{", (self.folder / "p").read_text())
        for flag in "--raport-file", "--log-jsonl", "--prometheus":
            self.fails(USAGE, [f"{flag}: cannot write", "No such file"], *run,
                       flag, self.folder / "no/file")
        self.fails(USAGE, ["--tensorboard", "cannot create folder"], *run,
                   "--tensorboard", self.folder / "l/t")
        result = self.call(*run, "--log-jsonl", "/dev/full")
        self.assertEqual(result.returncode, USAGE)
        self.assertIn("cannot write /dev/full: No space left", result.stderr)

    def test_warm_up_is_counted_as_the_rate_changes(self):
        self.fails(USAGE, ["--warmup-steps: expected --warmup (epochs)"],
                   *TINY, "--lr-update", "epoch", "--warmup-steps", "3")

    def test_divergence_has_its_own_exit_code(self):
        self.fails(DIVERGED, ["training diverged: loss is ", " at iteration ",
                              "learning rate 1e+30", "lower --lr"],
                   *TINY, "--iterations", "20", "--lr", "1e30",
                   "--lr-schedule", "constant")
        # Skipped updates keep the weights intact, but the loss is still NaN.
        self.fails(DIVERGED, ["training diverged: the last loss is nan"],
                   *TINY, "--iterations", "4", "--lr", "1e30", "--dtype",
                   "fp16", "--dynamic-loss-scale")

    def test_the_accuracy_to_stop_at_needs_evaluations(self):
        self.fails(USAGE, ["--stop-at-top1 needs evaluations"], *TINY,
                   "--stop-at-top1", "50", "--training-only")

    def test_lines_about_files_have_the_read_rate(self):
        text = self.succeeds(*TINY_FILES, self.samples, "-b", "4").stdout
        self.assertRegex(text, r"data wait [\d.]+ %  read [\d.]+ MB/s, \d+ "
                               r"files/s")


if __name__ == "__main__":
    unittest.main()
