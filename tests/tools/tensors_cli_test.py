"""Tests training on tensors of safetensors files: tensors_cli_test.py BIN."""

import array
import json
import pathlib
import random
import shutil
import struct
import unittest

from cli_case import DATA, GRAPH, USAGE, CliTest
from safetensors_file import read, write

EXPORTS = pathlib.Path(__file__).parents[1] / "golden/torch_export"
PIXELS = EXPORTS / "trained/pixels.pt2"
TOKENS = EXPORTS / "trained/tokens.pt2"
MASKED = EXPORTS / "trained/masked.pt2"
CLASSES, HEIGHT, WIDTH = 5, 8, 10
LENGTH = 6
ADAM = ("--optimizer", "adamw", "--lr", "0.02", "--threads", "1")


def pixels(samples, seed):
    """Returns images in bytes, of four blocks each, whose masks follow from
    the levels of red. The masks' first row is not labelled."""
    draw = random.Random(seed)
    inputs, targets = b"", b""
    for _ in range(samples):
        blocks = [draw.randrange(CLASSES) for _ in range(4)]
        classes = [blocks[2 * (y // 4) + x // 5] for y in range(HEIGHT)
                   for x in range(WIDTH)]
        inputs += bytes(50 * c for c in classes) + bytes(2 * len(classes))
        targets += bytes([255] * WIDTH + classes[WIDTH:])
    return {"input": ("U8", [samples, 3, HEIGHT, WIDTH], inputs),
            "target": ("U8", [samples, HEIGHT, WIDTH], targets)}


def tokens(samples, seed):
    """Returns sequences of which each token tells the next one."""
    draw = random.Random(seed)
    inputs, targets = [], []
    for _ in range(samples):
        text = [draw.randrange(11)]
        for _ in range(LENGTH):
            text.append((3 * text[-1] + 1) % 11)
        inputs += text[:-1]
        targets += [-100, *text[2:]]
    shape = [samples, LENGTH]
    return {"input": ("I64", shape, array.array("q", inputs).tobytes()),
            "target": ("I64", shape, array.array("q", targets).tobytes())}


def masked(samples, seed):
    """Returns the same with a mask that hides no token."""
    given = tokens(samples, seed)
    ones = array.array("q", [1] * (samples * LENGTH)).tobytes()
    return {**given, "attention_mask": ("I64", [samples, LENGTH], ones)}


def values(samples, seed):
    """Returns images and a value for each of the logits of pixels."""
    draw = random.Random(seed)
    def floats(*shape):
        count = samples
        for extent in shape:
            count *= extent
        return ("F32", [samples, *shape],
                array.array("f", (draw.random() for _ in range(count)))
                .tobytes())
    return {"input": floats(3, HEIGHT, WIDTH),
            "target": floats(CLASSES, HEIGHT, WIDTH)}


class TensorsTest(CliTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for make in pixels, tokens, masked, values:
            folder = cls.shared / make.__name__
            folder.mkdir()
            write(folder / "train-0.safetensors", make(20, 1))
            write(folder / "train-1.safetensors", make(12, 2))
            write(folder / "val.safetensors", make(10, 3))
        cls.pixels = cls.shared / "pixels"
        cls.tokens = cls.shared / "tokens"
        cls.masked = cls.shared / "masked"
        cls.values = cls.shared / "values"

    def train(self, data, archive, *flags, epochs=10):
        return self.json_of("train", data, "-a", archive, "-b", "8",
                            "--epochs", epochs, *ADAM, *flags)


class TensorTrainingTest(TensorsTest):
    def learns(self, report):
        self.assertLess(report["loss"], 0.5 * report["first_loss"])
        self.assertGreater(report["top1"], 0.7)
        self.assertEqual(report["evaluations"][-1]["images"], 10)

    def test_masks_of_pixels_are_learned_and_evaluated(self):
        out = self.folder / "out"
        report = self.train(self.pixels, PIXELS, "--workspace", out,
                            epochs=40)
        self.assertEqual(report["steps"], 160)
        self.learns(report)
        # Batches of other sizes, with padding, give the same.
        for batch in "4", "10", "16":
            evaluated = self.json_of(
                "eval", self.pixels, "-a", PIXELS, "--weights",
                out / "model.safetensors", "-b", batch)
            for key in "loss", "top1", "top5":
                self.assertAlmostEqual(evaluated[key], report["evaluations"]
                                       [-1][key], 5)
        self.assertIsNone(evaluated["classes"])

    def test_next_tokens_are_learned(self):
        self.learns(self.train(self.tokens, TOKENS, epochs=40))

    def test_a_model_reads_several_inputs(self):
        out = self.folder / "out"
        report = self.train(self.masked, MASKED, "--workspace", out,
                            epochs=40)
        self.learns(report)
        evaluated = self.json_of("eval", self.masked, "-a", MASKED,
                                 "--weights", out / "model.safetensors",
                                 "-b", "4")
        self.assertAlmostEqual(evaluated["loss"],
                               report["evaluations"][-1]["loss"], 5)
        self.succeeds("bench", "-a", MASKED, "-b", "4", self.masked,
                      "--iterations", "2")
        self.fails(DATA, ["expected tensors input, attention_mask and target, "
                          "got input, target"], "train", self.tokens, "-a",
                   MASKED, "-b", "4")
        self.succeeds("compare", self.masked, "-a", MASKED, "-b", "4",
                      "--rounds", "1")

    def test_values_are_learned_and_have_no_accuracy(self):
        log = self.folder / "log"
        for loss in "mse", "bce":
            report = self.train(self.values, PIXELS, "--loss", loss,
                                "--log-jsonl", log)
            self.assertLess(report["loss"], report["first_loss"])
            self.assertNotIn("top1", report)
            self.assertNotIn("top1", report["evaluations"][0])
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        self.assertFalse(any("top1" in line for line in lines))
        result = self.succeeds("eval", self.values, "-a", PIXELS, "--loss",
                               "mse", "-b", "8")
        self.assertRegex(result.stdout, r"\Aloss \d\.\d+  \(10 images")

    def test_images_in_tensors_train_a_classifier(self):
        side, samples = 32, 8
        labels = [sample % 2 for sample in range(samples)]
        levels = b"".join(bytes([200 * label]) * (3 * side * side)
                          for label in labels)
        write(self.folder / "data", {
            "input": ("U8", [samples, 3, side, side], levels),
            "target": ("I32", [samples], array.array("i", labels).tobytes())})
        report = self.json_of(
            "train", self.folder / "data", "-a", "resnet20-cifar", "-b", "8",
            "--num-classes", "2", "--epochs", "8", "--threads", "1", "--lr",
            "0.05")
        self.assertLess(report["loss"], report["first_loss"])

    def test_a_resumed_run_is_bit_identical(self):
        whole = self.train(self.tokens, TOKENS, "--workspace",
                           self.folder / "whole", epochs=3)
        part = ("--workspace", self.folder / "part")
        self.train(self.tokens, TOKENS, *part, "--prof", "6", epochs=3)
        rest = self.train(self.tokens, TOKENS, *part, "--resume", "auto",
                          epochs=3)
        self.assertEqual(rest["steps"], 6)  # from the middle of an epoch
        for key in "loss_hash", "state_hash":
            self.assertEqual(rest[key], whole[key])
        # Other data of the same shape is another run.
        other = self.folder / "other"
        shutil.copytree(self.tokens, other)
        write(other / "train-1.safetensors", tokens(12, 7))
        self.fails(5, ["data"], "train", other, "-a", TOKENS, "-b", "8",
                   "--epochs", "3", *ADAM, *part, "--resume", "auto")

    def test_two_ranks_share_the_samples(self):
        flags = ("-a", TOKENS, "--epochs", "2", *ADAM)
        alone = self.json_of("train", self.tokens, "-b", "8", *flags)
        both = self.json_of("launch", "--nproc-per-node", "2", "--", "train",
                            self.tokens, "-b", "4", *flags)
        for one, two in zip(alone["losses"], both["losses"]):
            self.assertAlmostEqual(one, two, 4)

    def test_micro_batches_averages_and_mixed_precision(self):
        report = self.train(self.tokens, TOKENS, "--amp",
                            "--optimizer-batch-size", "16", "--ema-decay",
                            "0.5")
        self.assertLess(report["loss"], report["first_loss"])

    def test_other_commands_need_no_data(self):
        for command in ("bench", "--iterations", "2"), ("plan",), ("compile",):
            self.succeeds(*command, "-a", PIXELS, "-b", "2")
        self.succeeds("bench", "-a", TOKENS, "-b", "2", self.tokens,
                      "--iterations", "2")
        self.fails(USAGE, ["i64[?]", "expected DATA"], "bench", "-a", TOKENS)
        self.succeeds("compare", "-a", PIXELS, "-b", "2", "--rounds", "0")

    def test_settings_are_searched(self):
        result = self.succeeds(
            "train", self.tokens, "-a", TOKENS, "-b", "4", "--epochs", "1",
            "--auto", "--auto-budget", "1", "--workspace", self.folder / "out")
        self.assertIn("auto ", result.stdout)

    def test_weights_tell_the_normalisation(self):
        out = self.folder / "out"
        self.train(self.pixels, PIXELS, "--workspace", out, epochs=1)
        self.fails(5, ["--mean"], "eval", self.pixels, "-a", PIXELS,
                   "--weights", out / "model.safetensors", "--mean", "1,2,3")

    def test_a_program_file_reads_tensors_of_its_types(self):
        program = self.folder / "step.fusor"
        self.succeeds("compile", "-a", PIXELS, "-b", "4", "-o", program)
        data = self.folder / "data"
        data.mkdir()
        floats = values(8, 1)
        floats["target"] = pixels(8, 1)["target"]
        write(data / "train.safetensors", floats)
        self.succeeds("run", program, data, "--epochs", "1")
        self.fails(DATA, ["input f32[3,8,10]", "got u8[3,8,10]"], "run",
                   program, self.pixels, "--training-only")

    def test_a_dense_model_is_exported(self):
        out = self.folder / "model.onnx"
        result = self.succeeds("export", "-a", PIXELS, "-o", out)
        self.assertIn("images f32[batch,3,8,10] -> logits f32[batch,5,8,10]",
                      result.stdout)


class BadTensorsTest(TensorsTest):
    def rejected(self, tensors, *words, archive=PIXELS, code=DATA, flags=()):
        path = self.folder / "bad"
        write(path, tensors)
        self.fails(code, [str(path), *words], "train", path, "-a", archive,
                   "-b", "2", "--training-only", *flags)

    def test_tensors_that_do_not_fit_are_named(self):
        good = pixels(4, 1)
        self.rejected({"input": good["input"]},
                      "expected tensors input and target, got input")
        self.rejected({**good, "target": pixels(3, 1)["target"]},
                      "tensor target: expected 4 samples, as in input, got 3")
        self.rejected(tokens(4, 1), "tensor input: expected samples "
                      "f32[3,8,10], or u8 if they are RGB images, got i64[6]")
        self.rejected(good, "tensor input: expected samples i64[?], got "
                      "u8[3,8,10]", archive=TOKENS)
        self.rejected(values(4, 1), "tensor target: expected samples of "
                      "integers [8,10] for --loss cross-entropy",
                      "got f32[5,8,10]")
        self.rejected({**good, "target": ("U8", [4, 80], good["target"][2])},
                      "or values [5,8,10] for --loss mse", "got u8[80]",
                      flags=("--loss", "mse"))

    def test_labels_and_tokens_out_of_range_are_named(self):
        good = pixels(2, 1)
        masks = bytearray(good["target"][2])
        masks[80 + 23] = 5
        self.rejected({**good, "target": (*good["target"][:2], bytes(masks))},
                      "sample 1: label 5 at [2,3]: expected 0 to 4, or -100 or "
                      "255 to ignore it")
        text = tokens(2, 1)
        ids = struct.pack("<12q", *range(12))
        self.rejected({**text, "input": (*text["input"][:2], ids)},
                      "sample 1: input 11 at [5]: expected 0 to 10",
                      archive=TOKENS)

    def test_damaged_files_are_named(self):
        path = self.folder / "bad"
        write(path, pixels(4, 1))
        data = path.read_bytes()
        for damaged, word in (
                (data[:-1], "truncated?"),
                (data[:30], "truncated, or no"),
                (data.replace(b"[4, 3, 8, 10]", b"[9, 3, 8, 10]"),
                 "does not fit in 960 bytes")):
            path.write_bytes(damaged)
            self.fails(DATA, [str(path), word], "train", path, "-a", PIXELS)

    def test_flags_of_images_are_rejected(self):
        for flags in (("--train-transform", "exact"), ("--gray", "0.1"),
                      ("--val-crop-size", "8"), ("--max-per-class", "1"),
                      ("--mixup", "0.2"), ("--augment-on", "device")):
            self.fails(USAGE, [], "train", self.pixels, "-a", PIXELS, *flags)

    def test_other_flags_that_do_not_fit_are_rejected(self):
        self.fails(USAGE, ["--stop-at-top1", "got values"], "train",
                   self.values, "-a", PIXELS, "--loss", "mse",
                   "--stop-at-top1", "50")
        self.fails(USAGE, ["--label-smoothing 0.1", "got values"], "train",
                   self.values, "-a", PIXELS, "--loss", "mse",
                   "--label-smoothing", "0.1")
        self.fails(GRAPH, ["expected 12 classes (--num-classes)"], "train",
                   self.tokens, "-a", TOKENS, "--num-classes", "12")

    def test_images_and_tensors_are_not_confused(self):
        self.fails(USAGE, ["expected safetensors files with tensors input and "
                           "target", "module:pixels"], "train", self.samples,
                   "-a", PIXELS)
        self.fails(USAGE, ["expected images, got tensors"], "data", "inspect",
                   self.pixels)
        self.fails(USAGE, ["module:pixels"], "predict", "x.jpg", "-a", PIXELS)


if __name__ == "__main__":
    unittest.main()
