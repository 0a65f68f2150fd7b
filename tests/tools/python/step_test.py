"""Tests fusor.compile and the compiled step from Python."""

import contextlib
import gc
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import numpy

import fusor
from error_case import ErrorCase

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from safetensors_file import read  # noqa: E402

EXPORTS = pathlib.Path(__file__).parents[2] / "golden/torch_export"
CONVOLUTIONAL = EXPORTS / "convolutional.pt2"
DOCUMENT = pathlib.Path(__file__).parents[3] / "tools/python/README.md"
USAGE, GRAPH, DATA, CHECKPOINT = 2, 3, 4, 5


def golden(name):
    """Returns PyTorch's inputs and results for an archive."""
    kinds = {"F64": "<f8", "F32": "<f4", "I32": "<i4", "I64": "<i8"}
    tensors, _ = read(EXPORTS / f"{name}.safetensors")
    return {key: numpy.frombuffer(data, kinds[dtype]).reshape(shape)
            for key, (dtype, shape, data) in tensors.items()}


def regression(batch=8):
    """Returns a linear regression: x [N, 3], y [N, 1]."""
    b = fusor.Builder("regression")
    x = b.input("x", [batch, 3])
    y = b.input("y", [batch, 1])
    w = b.parameter("w", [1, 3], init="constant", value=0.5)
    error = b.linear(x, w) - y
    b.output(b.reduce_mean(error * error, [0, 1]), "loss")
    b.output(error, "error")
    return b


class TrainingTest(ErrorCase):
    def test_loss_and_gradients_are_pytorchs(self):
        expected = golden("convolutional")
        step = fusor.compile(
            CONVOLUTIONAL, expected["images"], threads=2,
            optimizer=fusor.SGD(lr=1.0))
        before = step.state_dict()
        loss = step(expected["images"], expected["labels"])
        self.assertAlmostEqual(loss, expected["loss"].item(), delta=1e-5)
        after = step.state_dict()
        gradients = [key for key in expected if key.startswith("grad/")]
        self.assertGreater(len(gradients), 10)
        for key in gradients:
            name = key.removeprefix("grad/")
            numpy.testing.assert_allclose(
                before[name] - after[name], expected[key], rtol=1e-3,
                atol=1e-5, err_msg=name)

    def test_a_graph_of_a_builder_follows_the_rule_of_sgd(self):
        random = numpy.random.default_rng(0)
        x = random.standard_normal((8, 3), dtype=numpy.float32)
        y = random.standard_normal((8, 1), dtype=numpy.float32)
        step = fusor.compile(regression(), optimizer=fusor.SGD(
            lr=0.1, momentum=0.9, weight_decay=0.01))
        self.assertEqual(step.inputs, [("x", "f32", (8, 3)),
                                       ("y", "f32", (8, 1))])
        w = numpy.full((1, 3), 0.5, numpy.float32)
        velocity = numpy.zeros_like(w)
        for lr in (0.1, 0.1, 0.02):
            step.lr = lr
            error = x @ w.T - y
            self.assertAlmostEqual(step(x, y=y), (error ** 2).mean(), places=5)
            numpy.testing.assert_allclose(step.output("error"), error,
                                          atol=1e-5)
            gradient = 2 * error.T @ x / 8 + 0.01 * w
            velocity = 0.9 * velocity + gradient
            w = w - lr * velocity
            numpy.testing.assert_allclose(step.state_dict()["w"], w, atol=1e-5)
        self.assertEqual(step.steps, 3)

    def test_every_optimizer_reduces_the_loss(self):
        random = numpy.random.default_rng(0)
        x = random.standard_normal((8, 3), dtype=numpy.float32)
        y = x @ numpy.float32([[1], [-2], [3]])
        for optimizer in (
                fusor.SGD(lr=0.05, momentum=0.9, nesterov=True), fusor.LARS(),
                fusor.Adam(lr=0.05), fusor.AdamW(lr=0.05),
                fusor.LAMB(lr=0.05), fusor.RMSprop(lr=0.05),
                fusor.RMSprop(lr=0.05, tf=True, momentum=0.5)):
            with self.subTest(optimizer):
                step = fusor.compile(regression(), optimizer=optimizer)
                losses = [step(x, y) for _ in range(10)]
                self.assertLess(losses[-1], losses[0])

    def test_builtin_models_take_bytes_or_floats(self):
        images = numpy.random.default_rng(0).integers(
            0, 256, (4, 32, 32, 3), numpy.uint8)
        labels = numpy.arange(4)
        step = fusor.compile("resnet20-cifar", (images, labels), num_classes=10,
                             seed=3)
        normal = (images - numpy.float32([125.3, 123.0, 113.9])) / (
            numpy.float32([63.0, 62.1, 66.7]))
        floats = numpy.ascontiguousarray(normal.transpose(0, 3, 1, 2),
                                         numpy.float32)
        same = fusor.compile("resnet20-cifar", floats, num_classes=10, seed=3)
        self.assertAlmostEqual(step(images, labels),
                               same(floats, labels.astype(numpy.int32)),
                               places=4)
        self.assertIn("resnet20-cifar", repr(step))
        self.assertIn("thread", step.device)

    def test_mixed_precision_and_averages(self):
        expected = golden("convolutional")
        step = fusor.compile(
            CONVOLUTIONAL, expected["images"], amp=True, ema_decay=0.5,
            dynamic_loss_scale=True, clip_grad_norm=1.0)
        loss = step(expected["images"], expected["labels"])
        self.assertAlmostEqual(loss, expected["loss"].item(), delta=0.1)
        step.evaluate(expected["images"], expected["labels"])


class EvaluationTest(ErrorCase):
    def test_predictions_give_the_evaluated_loss(self):
        expected = golden("convolutional")
        images, labels = expected["images"], expected["labels"]
        step = fusor.compile(CONVOLUTIONAL, images)
        step(images, labels)
        logits = step.predict(images).astype(numpy.float64)
        shifted = logits - logits.max(1, keepdims=True)
        losses = -(shifted - numpy.log(
            numpy.exp(shifted).sum(1, keepdims=True)))[
                numpy.arange(len(labels)), labels]
        result = step.evaluate(images, labels)
        self.assertAlmostEqual(result["loss"], losses.mean(), places=5)
        self.assertAlmostEqual(result["top1"],
                               (logits.argmax(1) == labels).mean(), places=6)
        self.assertEqual(result["top5"], 1)
        # A smaller batch.
        numpy.testing.assert_allclose(step.predict(images[:1]), logits[:1],
                                      rtol=1e-5, atol=1e-6)
        part = step.evaluate(images[1:], labels[1:])
        self.assertAlmostEqual(part["loss"], losses[1:].mean(), places=5)
        self.assertEqual(step.steps, 1)

    def test_bad_batches(self):
        expected = golden("convolutional")
        images, labels = expected["images"], expected["labels"]
        step = fusor.compile(CONVOLUTIONAL, images)
        self.fails(USAGE, ["labels", "(1,)"], step.evaluate, images,
                   labels[:1])
        self.fails(USAGE, ["images: expected at most float32"], step.predict,
                   numpy.concatenate([images, images]))
        self.fails(USAGE, ["images", "(0, "], step.predict, images[:0])
        self.fails(GRAPH, ["regression", "evaluation"],
                   fusor.compile(regression()).predict, images)


class TensorsTest(ErrorCase):
    """Models of tokens, of which one has a mask, and of pixels."""

    def compile(self, name, *parts, **options):
        expected = golden(f"trained/{name}")
        batch = [expected[part] for part in parts]
        step = fusor.compile(EXPORTS / f"trained/{name}.pt2", batch,
                             optimizer=fusor.SGD(lr=0.5), **options)
        return step, batch, expected

    def test_losses_are_pytorchs(self):
        for name, parts in (("tokens", ["input", "target"]),
                            ("masked", ["input", "attention_mask", "target"]),
                            ("pixels", ["input", "target"])):
            step, batch, expected = self.compile(name, *parts)
            self.assertAlmostEqual(step(*batch), expected["loss"].item(), 5)
            before = step.evaluate(*batch)
            logits = step.predict(*batch[:-1])
            self.assertEqual(logits.shape, expected["values"].shape)
            rows = step.predict(*(array[:2] for array in batch[:-1]))
            numpy.testing.assert_allclose(rows, logits[:2], 1e-4, 1e-6)
            labels, classes = batch[-1], 2 if name != "pixels" else 1
            counts = (labels >= 0) & (labels != 255)
            self.assertAlmostEqual(
                before["top1"], (logits.argmax(classes) == labels)[counts]
                .mean(), 5)
            for _ in range(20):
                loss = step(*batch)
            self.assertLess(loss, 0.9 * expected["loss"].item())
            self.assertLess(step.evaluate(*batch)["loss"], before["loss"])

    def test_inputs_have_their_own_names(self):
        step, (ids, mask, labels), expected = self.compile(
            "masked", "input", "attention_mask", "target")
        self.assertEqual([name for name, _, _ in step.inputs],
                         ["images", "attention_mask", "labels"])
        loss = step(ids, labels=labels, attention_mask=mask)
        self.assertAlmostEqual(loss, expected["loss"].item(), 5)
        all_seen = step.predict(ids, numpy.ones_like(mask))
        self.assertGreater(abs(all_seen - step.predict(ids, mask)).max(), 1e-4)

    def test_an_example_without_target(self):
        step, batch, expected = self.compile("masked", "input",
                                             "attention_mask")
        self.assertAlmostEqual(step(*batch, expected["target"]),
                               expected["loss"].item(), 5)

    def test_values_have_no_accuracy(self):
        expected = golden("trained/pixels")
        batch = expected["input"], expected["values"].astype(numpy.float32)
        step = fusor.compile(EXPORTS / "trained/pixels.pt2", batch, loss="mse")
        step(*batch)
        self.assertEqual(list(step.evaluate(*batch)), ["loss"])

    def test_bad_tensors(self):
        step, (ids, mask, labels), _ = self.compile(
            "masked", "input", "attention_mask", "target")
        wrong = ids.copy()
        wrong[1, 2] = 11
        self.fails(DATA, ["images: value 11 at [1,2]", "0 to 10"], step, wrong,
                   mask, labels)
        bad = labels.copy()
        bad[0, 1] = 12
        self.fails(DATA, ["labels", "label 12 at [0,1]"], step, ids, mask, bad)
        self.fails(USAGE, ["attention_mask: expected", "(3, 5)"], step, ids,
                   mask[:, :5], labels)
        self.fails(USAGE, ["attention_mask: expected 2 rows"], step.predict,
                   ids[:2], mask)
        self.fails(USAGE, ["expected 2 arrays", "got 1"], step.predict, ids)
        path = EXPORTS / "trained/masked.pt2"
        self.fails(USAGE, ["input_ids, attention_mask", "got 1"],
                   fusor.compile, path, ids)
        self.fails(USAGE, ["example[1]", "as many as in example[0]"],
                   fusor.compile, path, [ids, mask[:1]])
        self.fails(DATA, ["tensor attention_mask", "i64[6,1]"], fusor.compile,
                   path, [ids, mask[..., None]])
        self.fails(USAGE, ["expected DATA"], fusor.compile, path)


class ArrayTest(ErrorCase):
    def setUp(self):
        self.step = fusor.compile(regression(), optimizer=fusor.SGD(lr=0.0))
        random = numpy.random.default_rng(1)
        self.x = random.standard_normal((8, 3), dtype=numpy.float32)
        self.y = random.standard_normal((8, 1), dtype=numpy.float32)
        self.loss = self.step(self.x, self.y)

    def test_strided_arrays(self):
        for x in (numpy.asfortranarray(self.x), self.x[::-1][::-1],
                  numpy.repeat(self.x, 2, axis=1)[:, ::2],
                  numpy.flip(numpy.flip(self.x, 1).copy(), 1)):
            self.assertEqual(self.step(x, self.y), self.loss)

    def test_a_read_only_array(self):
        x = self.x.copy()
        x.flags.writeable = False
        self.assertEqual(self.step(x, self.y), self.loss)

    def test_a_dlpack_array_is_read_and_freed(self):
        freed = []

        class Exporter:
            def __init__(self, array):
                self.array = array

            def __dlpack__(self, **keywords):
                return self.array.__dlpack__(**keywords)

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

            def __del__(self):
                freed.append(self)

        self.assertEqual(self.step(Exporter(self.x.copy()), self.y), self.loss)
        gc.collect()
        self.assertEqual(len(freed), 1)

    def test_an_array_freed_while_the_step_runs(self):
        step = fusor.compile("resnet20-cifar", batch_size=16, num_classes=10,
                             optimizer=fusor.SGD(lr=0.0))
        images = numpy.random.default_rng(2).integers(
            0, 256, (16, 32, 32, 3), numpy.uint8)
        labels = numpy.arange(16) % 10
        expected = step(images, labels)
        losses = []
        for _ in range(3):
            # The call has the only references.
            batch = [images.copy(), labels.copy()]
            thread = threading.Thread(target=lambda batch=batch: losses.append(
                step(batch.pop(0), batch.pop(0))))
            thread.start()
            while batch:
                pass
            gc.collect()
            numpy.full(images.shape, 255, numpy.uint8)  # reuses freed memory
            thread.join()
        self.assertEqual(losses, [expected] * 3)

    def test_an_array_on_a_device(self):
        class OnDevice:
            def __dlpack__(self, **keywords):
                raise BufferError("it is on a GPU")

            def __dlpack_device__(self):
                return (2, 0)

        self.fails(USAGE, ["x: expected an array", "it is on a GPU"], self.step,
                   OnDevice(), self.y)

    def test_arrays_that_do_not_fit(self):
        for x, words in (
                (self.x.astype(numpy.float64), ["x", "float32 (8, 3)",
                                                "float64"]),
                (self.x[:4], ["float32 (8, 3)", "(4, 3)"]),
                (self.x.astype(numpy.complex64), ["x", "64 bits"]),
                (self.x.tolist(), ["x: expected an array", "list"]),
                (None, ["x: expected an array", "NoneType"]),
                (numpy.array(1, numpy.float32), ["float32 ()"])):
            self.fails(USAGE, words, self.step, x, self.y)
        self.fails(USAGE, ["2 arrays (x, y)", "got 1"], self.step, self.x)
        self.fails(USAGE, ["input y, got none"], self.step, self.x, z=self.y)
        self.assertEqual(self.step.steps, 1)
        self.assertEqual(self.step(self.x, self.y), self.loss)

    def test_labels_are_converted_if_they_fit(self):
        images = numpy.zeros((2, 32, 32, 3), numpy.uint8)
        step = fusor.compile("resnet20-cifar", images, num_classes=10,
                             optimizer=fusor.SGD(lr=0.0))
        losses = {step(images, numpy.array([1, 2], dtype))
                  for dtype in (numpy.int32, numpy.int64, numpy.uint8)}
        self.assertEqual(len(losses), 1)
        self.fails(USAGE, ["labels", "int32", str(2 ** 40), "element 1"], step,
                   images, numpy.array([1, 2 ** 40]))


class OptionTest(ErrorCase):
    def test_bad_options(self):
        def compile(**options):
            fusor.compile("resnet20-cifar", batch_size=2, **options)

        self.fails(USAGE, ["fusoin: unknown", "did you mean fusion?"], compile,
                   fusoin="on")
        self.fails(USAGE, ["fusion: expected on, off"], compile, fusion="maybe")
        self.fails(USAGE, ["amp: expected True or False"], compile, amp="on")
        self.fails(USAGE, ["num_classes: expected a whole number"], compile,
                   num_classes=0)
        self.fails(USAGE, ["amp_allow, amp_deny: expected amp too"], compile,
                   amp_allow=["conv2d"])
        self.fails(USAGE, ["arch: unknown"], compile, arch="vgg16")
        self.fails(USAGE, ["augment_on: unknown"], compile, augment_on="device")
        self.fails(USAGE, ["momentum: expected it in the optimizer"], compile,
                   momentum=0.5)
        self.fails(USAGE, ["optimizer: expected one of fusor"], compile,
                   optimizer="sgd")
        self.fails(USAGE, ["lr: expected"], compile,
                   optimizer=fusor.SGD(lr=-1))
        self.fails(USAGE, ["batch_size: expected 4"], fusor.compile,
                   "resnet20-cifar", numpy.zeros((4, 32, 32, 3), numpy.uint8),
                   batch_size=2)
        self.fails(USAGE, ["example[0]", "uint8 (N, S, S, 3)"], fusor.compile,
                   "resnet20-cifar", numpy.zeros((4, 32, 32)))
        self.fails(USAGE, ["batch_size: expected none"], fusor.compile,
                   regression(), batch_size=2)

    def test_bad_models(self):
        self.fails(USAGE, ["resnet51", "did you mean"], fusor.compile,
                   "resnet51")
        self.fails(USAGE, ["missing/model.txt"], fusor.compile,
                   "missing/model.txt")
        self.fails(USAGE, ["model: expected", "int"], fusor.compile, 5)
        with tempfile.TemporaryDirectory() as folder:
            bad = pathlib.Path(folder) / "bad.pt2"
            bad.write_bytes(b"no archive")
            self.fails(GRAPH, ["bad.pt2"], fusor.compile, bad)
        b = fusor.Builder("lossless")
        b.output(b.parameter("w", [2]), "w")
        self.fails(GRAPH, ["lossless", "loss"], fusor.compile, b)

    def test_a_module_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "regression.txt"
            path.write_text(str(regression()), encoding="utf-8")
            step = fusor.compile(path)
            x = numpy.ones((8, 3), numpy.float32)
            self.assertAlmostEqual(step(x, x[:, :1]), 0.25)

    def test_dumps_name_the_line_of_python(self):
        with tempfile.TemporaryDirectory() as folder:
            fusor.compile(regression(), dump_to=folder)
            texts = "".join(
                path.read_text(encoding="utf-8")
                for path in pathlib.Path(folder).rglob("*.txt"))
            self.assertIn("python/step_test.py:", texts)


class CustomGradientTest(ErrorCase):
    @staticmethod
    def graph(gradients):
        """Returns the loss of w exp(v x), a composite with these gradients."""
        b = fusor.Builder("custom")
        x = b.input("x", [4])
        w = b.parameter("w", [4], init="constant", value=0.5)
        v = b.parameter("v", [], init="constant", value=0.25)

        def forward(b, w, v):
            return w * b.exp(v * x)

        y = b.custom_gradient(
            forward, lambda b, dy, y, w, v: gradients(b, x, dy, y, w, v), w, v)
        b.output(b.reduce_sum(y * y, [0]), "loss")
        return b

    def test_the_gradient_is_that_of_numeric_differences(self):
        def gradients(b, x, dy, y, w, v):
            return dy * b.exp(v * x), b.reduce_sum(dy * y * x, [0])

        x = numpy.float32([0.5, -1, 2, 0.1])
        step = fusor.compile(self.graph(gradients),
                             optimizer=fusor.SGD(lr=1.0))
        before = step.state_dict()
        step(x)
        after = step.state_dict()
        fixed = fusor.compile(self.graph(gradients),
                              optimizer=fusor.SGD(lr=0.0))
        for name, value in before.items():
            for index in numpy.ndindex(value.shape):
                losses = []
                for delta in (1e-2, -1e-2):
                    state = {key: array.copy() for key, array in before.items()}
                    state[name][index] += delta
                    fixed.load_state_dict(state)
                    losses.append(fixed(x))
                self.assertAlmostEqual(
                    (before[name] - after[name])[index],
                    (losses[0] - losses[1]) / 2e-2, delta=2e-2)

    def test_the_gradient_is_the_users(self):
        # A straight-through estimator, and a parameter without gradient.
        b = fusor.Builder("round")
        w = b.parameter("w", [3], init="constant", value=0.7)
        v = b.parameter("v", [3], init="constant", value=2.0)
        y = b.custom_gradient(lambda b, w, v: b.floor(w) + v,
                              lambda b, dy, y, w, v: (dy, None), w, v)
        b.output(b.reduce_sum(y * 3.0, [0]), "loss")
        step = fusor.compile(b, optimizer=fusor.SGD(lr=0.1))
        self.assertEqual(step(), 18.0)
        state = step.state_dict()
        numpy.testing.assert_allclose(state["w"], [0.4] * 3, rtol=1e-6)
        numpy.testing.assert_array_equal(state["v"], [2] * 3)

    def test_bad_gradients(self):
        self.fails(USAGE, ["expected 2 values", "got 1"], self.graph,
                   lambda b, x, dy, y, w, v: dy)
        self.fails(GRAPH, ["operand 1", "expected f32[]", "got f32[4]",
                           "step_test.py:"], self.graph,
                   lambda b, x, dy, y, w, v: (dy, dy))
        self.fails(USAGE, ["expected a fusor.Value or None, got int"],
                   self.graph, lambda b, x, dy, y, w, v: (dy, 1))
        self.fails(USAGE, ["forward: expected a fusor.Value, got NoneType"],
                   fusor.Builder().custom_gradient, lambda b: None,
                   lambda b, dy, y: [])


class StateTest(ErrorCase):
    def setUp(self):
        self.batch = golden("convolutional")
        self.step = fusor.compile(CONVOLUTIONAL, self.batch["images"])

    def run_step(self, step):
        return step(self.batch["images"], self.batch["labels"])

    def test_state_continues_in_another_step(self):
        self.run_step(self.step)
        other = fusor.compile(CONVOLUTIONAL, self.batch["images"], seed=9)
        other.load_state_dict(self.step.state_dict())
        self.assertEqual(self.run_step(other), self.run_step(self.step))

    def test_weights_in_files(self):
        self.run_step(self.step)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "weights.safetensors"
            self.step.save_weights(path)
            other = fusor.compile(CONVOLUTIONAL, self.batch["images"])
            other.load_weights(path)
        for name, value in self.step.state_dict().items():
            numpy.testing.assert_array_equal(other.state_dict()[name], value)

    def test_checkpoints_continue_with_equal_bits(self):
        def compiled(**options):
            return fusor.compile(
                CONVOLUTIONAL, self.batch["images"],
                optimizer=fusor.AdamW(lr=0.01), ema_decay=0.9, **options)

        step = compiled()
        self.run_step(step)
        with tempfile.TemporaryDirectory() as folder:
            first = step.save_checkpoint(folder, keep=2)
            expected = [self.run_step(step) for _ in range(2)]
            other = compiled()
            other.load_checkpoint(folder)
            self.assertEqual(other.steps, 1)
            self.assertEqual([self.run_step(other) for _ in range(2)],
                             expected)
            newest = [step.save_checkpoint(folder, keep=2) for _ in range(2)]
            self.assertEqual(sorted(newest), sorted(
                str(path) for path in pathlib.Path(folder).glob("step-*")))
            # If the newest checkpoint is corrupt, the previous one is loaded.
            manifest = pathlib.Path(newest[1]) / "manifest.json"
            manifest.write_text(manifest.read_text()[:-9])
            self.fails(CHECKPOINT, [newest[1]], other.load_checkpoint,
                       newest[1])
            other.load_checkpoint(folder)
            self.assertEqual(other.steps, 3)
            self.fails(CHECKPOINT, [first], other.load_checkpoint, first)
            self.fails(CHECKPOINT, ["expected seed 5, got 0"],
                       compiled(seed=5).load_checkpoint, folder)
            self.fails(CHECKPOINT, ["other options"], self.step.load_checkpoint,
                       folder)
            self.assertEqual(self.step.steps, 0)
            self.fails(2, ["keep"], step.save_checkpoint, folder, -1)

    def test_bad_states_change_nothing(self):
        state = self.step.state_dict()
        name = "head.weight"
        missing = {key: value for key, value in state.items() if key != name}
        self.fails(CHECKPOINT, [name], self.step.load_state_dict, missing)
        self.fails(CHECKPOINT, ["extra"], self.step.load_state_dict,
                   {**state, "extra": state[name]})
        self.fails(CHECKPOINT, [name], self.step.load_state_dict,
                   {**state, name: state[name][:, :1] + 1})
        for key, value in self.step.state_dict().items():
            numpy.testing.assert_array_equal(value, state[key])
        doubled = {name: state[name].astype(numpy.float64) * 2}
        self.step.load_state_dict(doubled, strict=False)
        numpy.testing.assert_array_equal(self.step.state_dict()[name],
                                         state[name] * 2)

    def test_a_state_outlives_its_step(self):
        state = fusor.compile(regression()).state_dict()
        gc.collect()
        numpy.testing.assert_array_equal(state["w"], [[0.5, 0.5, 0.5]])


class ReportTest(ErrorCase):
    def test_a_report(self):
        step = fusor.compile(CONVOLUTIONAL, golden("convolutional")["images"])
        report = step.report()
        self.assertIn("compiled ", str(report))
        self.assertIn("convolutional, batch", repr(report))
        self.assertTrue(report.html.startswith("<!DOCTYPE html>"))
        self.assertIn("srcdoc=", report._repr_html_())
        self.assertNotIn("<script>", report._repr_html_())
        self.assertGreater(report.data["program"]["kernels"], 0)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "plan.html"
            report.save(path)
            self.assertEqual(path.read_text(encoding="utf-8"), report.html)

    def test_fusion_changes_no_bit_with_eager_rounding(self):
        report = fusor.compare(
            CONVOLUTIONAL, golden("convolutional")["images"],
            a={"fusion": "off"}, b={"fusion": True}, rounds=1, warmup=0,
            fusion_rounding="eager")
        self.assertIn("bit-identical: loss", report.text)
        self.assertIn("fusion=off", report.text)
        self.assertIn("<!DOCTYPE html>", report.html)
        self.assertEqual(len(report.data["variants"]), 2)

    def test_bad_variants(self):
        def compare(**variants):
            fusor.compare(regression(), rounds=0, **variants)

        self.fails(USAGE, ["b: ", "fusoin"], compare, a={}, b={"fusoin": "on"})
        self.fails(USAGE, ["example"], fusor.compare, regression(),
                   [numpy.zeros((8, 3), numpy.float32)] * 3, a={}, b={})


class DocumentTest(ErrorCase):
    def test_the_samples_of_the_document_run(self):
        text = DOCUMENT.read_text(encoding="utf-8")
        samples = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
        self.assertGreater(len(samples), 5)
        printed = io.StringIO()
        self.addCleanup(os.chdir, os.getcwd())
        with tempfile.TemporaryDirectory() as folder, (
                contextlib.redirect_stdout(printed)):
            os.chdir(folder)
            names = {}
            for sample in samples:
                exec(sample, names)
            self.assertTrue(pathlib.Path("plan.html").exists())
        # The message that the document shows.
        self.assertIn(re.search(r"# (2 images: .*)", text)[1],
                      printed.getvalue())
        self.assertIn("fusion=off", printed.getvalue())


class ProcessTest(ErrorCase):
    def test_a_second_thread(self):
        step = fusor.compile("resnet20-cifar", batch_size=32, num_classes=10)
        images = numpy.zeros((32, 32, 32, 3), numpy.uint8)
        labels = numpy.zeros(32, numpy.int32)
        errors, losses = [], []

        def train():
            for _ in range(4):
                try:
                    losses.append(step(images, labels))
                except fusor.Error as error:
                    errors.append(error)

        threads = [threading.Thread(target=train) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(losses), step.steps)
        self.assertEqual(len(losses) + len(errors), 8)
        for error in errors:
            self.assertIn("another thread is using this step", str(error))
        step(images, labels)

    def test_python_runs_during_a_step(self):
        step = fusor.compile("resnet20-cifar", batch_size=64, num_classes=10)
        images = numpy.zeros((64, 32, 32, 3), numpy.uint8)
        ticks, done = [], threading.Event()

        def tick():
            while not done.wait(0.001):
                ticks.append(1)

        thread = threading.Thread(target=tick)
        thread.start()
        before = len(ticks)
        step(images, numpy.zeros(64, numpy.int32))
        after = len(ticks)
        done.set()
        thread.join()
        self.assertGreater(after, before)

    def test_a_fork(self):
        step = fusor.compile(regression())
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            text = "nothing was raised"
            try:
                step(numpy.zeros((8, 3), numpy.float32),
                     numpy.zeros((8, 1), numpy.float32))
            except fusor.Error as error:
                text = str(error)
            os.write(writer, text.encode())
            os._exit(0)
        os.waitpid(child, 0)
        self.assertIn("forked after fusor had started its threads",
                      os.read(reader, 1000).decode())
        os.close(reader)
        os.close(writer)

    def test_a_fork_before_the_first_step_may_compile(self):
        script = (
            "import os, sys, fusor\n"
            "child = os.fork()\n"
            "b = fusor.Builder()\n"
            "w = b.parameter('w', [2])\n"
            "b.output(b.reduce_sum(w, [0]), 'loss')\n"
            "fusor.compile(b)()\n"
            "if child: sys.exit(os.waitpid(child, 0)[1])\n")
        subprocess.run([sys.executable, "-c", script], check=True, timeout=120)

    def test_an_interrupted_compilation(self):
        def interrupt(signum, frame):
            raise KeyboardInterrupt

        old = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with self.assertRaises(KeyboardInterrupt):
                fusor.compile("resnet152", batch_size=2, image_size=64)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        step = fusor.compile(regression())
        step(numpy.zeros((8, 3), numpy.float32),
             numpy.zeros((8, 1), numpy.float32))

    def test_import_is_quick_and_needs_no_torch(self):
        # Processor time, since other programs may be running.
        script = ("import time; start = time.process_time(); import fusor; "
                  "import sys; print(time.process_time() - start); "
                  "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)")
        times = [float(subprocess.run(
            [sys.executable, "-c", script], check=True, capture_output=True,
            text=True).stdout) for _ in range(3)]
        self.assertLess(min(times), 0.2)

    def test_memory_is_returned(self):
        def resident():
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

        images = golden("convolutional")["images"]
        for _ in range(4):
            fusor.compile(CONVOLUTIONAL, images)
        before = resident()
        for _ in range(8):
            fusor.compile(CONVOLUTIONAL, images)
        self.assertLess(resident(), before * 1.05 + (4 << 20))


if __name__ == "__main__":
    unittest.main()
