"""Tests models in ONNX's format from the command line: onnx_cli_test.py BIN."""

import struct
import unittest

from cli_case import GRAPH, USAGE, CliTest
from noise_images import make_images
from onnx_file import (DOUBLE, FLOAT, FLOAT16, INT8, INT64, STRING, classifier,
                       field, floats, function, integers, model, node,
                       reference, tensor, value)
from safetensors_file import read, write


class OnnxCase(CliTest):
    def write(self, data, name="model.onnx"):
        path = self.folder / name
        path.write_bytes(data)
        return path


class OnnxTrainingTest(OnnxCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.images = cls.shared / "images"
        make_images(cls.images)

    def train(self, *flags, data=None):
        path = self.write(data or classifier())
        out = self.folder / "out"
        result = self.succeeds(
            "train", self.images, "-a", path, "-b", "4", "--epochs", "1",
            "--workspace", out, *flags)
        return result, read(out / "model.safetensors")[0]

    def test_training_starts_from_the_models_weights(self):
        result, tensors = self.train("--lr", "1e-30")
        self.assertIn("weights   module:model\n", result.stdout)
        self.assertEqual(set(tensors), {
            "stem.weight", "norm.weight", "norm.bias", "norm.running_mean",
            "norm.running_var", "head.weight", "head.bias"})
        weights = struct.unpack("<108f", tensors["stem.weight"][2])
        for i, weight in enumerate(weights):
            self.assertAlmostEqual(weight, (i % 7 - 3) / 16, 20)
        # The batches' statistics were included.
        self.assertNotEqual(tensors["norm.running_mean"][2], bytes(16))

    def test_a_new_head_is_drawn_and_named(self):
        result, tensors = self.train("--num-classes", "7")
        self.assertIn("initialised: head.bias, head.weight\n", result.stdout)
        self.assertEqual(tensors["head.weight"][1], [7, 4])

    def evaluate(self, data):
        result = self.succeeds("eval", self.images, "-a", self.write(data))
        return result.stdout.split("(")[0]

    def test_a_models_own_weights_are_evaluated(self):
        self.assertIn("top1", self.evaluate(classifier()))

    def test_the_softmax_of_logits_is_part_of_the_loss(self):
        self.assertEqual(self.evaluate(classifier()),
                         self.evaluate(classifier(softmax=True)))

    def test_every_command_takes_a_model(self):
        flags = ("-a", self.write(classifier()), "-b", "2")
        self.succeeds("bench", *flags, "--iterations", "2", "--amp")
        self.succeeds("compare", *flags)
        self.succeeds("plan", *flags)
        self.assertIn('@"stem.Conv"', self.succeeds(
            "dump", *flags, "--emit", "graph").stdout)
        self.succeeds("compile", *flags, "-o", self.folder / "step.fusor")

    def test_an_exported_model_has_the_same_accuracy(self):
        path = self.write(classifier())
        out = self.folder / "out"
        self.succeeds("train", self.images, "-a", path, "-b", "4", "--epochs",
                      "1", "--workspace", out)
        weights = ("--weights", out / "model.safetensors")
        exported = self.folder / "trained.onnx"
        result = self.succeeds("export", "-a", path, *weights, "-o", exported)
        self.assertIn("images f32[batch,3,16,16] -> logits f32[batch,5]",
                      result.stdout)
        before = self.succeeds("eval", self.images, "-a", path, *weights)
        after = self.succeeds("eval", self.images, "-a", exported)
        self.assertEqual(before.stdout.split("(")[0],
                         after.stdout.split("(")[0])

    def test_exports_that_are_rejected(self):
        path = self.write(classifier())
        self.fails(USAGE, ["--output", ".onnx", "model.txt"], "export", "-a",
                   path, "-o", self.folder / "model.txt")
        self.fails(USAGE, ["export: expected --weights"], "export", "-a",
                   "resnet20-cifar", "-o", self.folder / "out.onnx")
        self.fails(USAGE, ["/none/out.onnx"], "export", "-a", path, "-o",
                   "/none/out.onnx")

    def test_a_fixed_batch_is_the_only_one(self):
        path = self.write(classifier(batch=3))
        self.succeeds("bench", "-a", path, "--iterations", "1")
        self.fails(GRAPH, ["its batch is 3, expected 4"], "bench", "-a", path,
                   "-b", "4")


class OnnxExecTest(OnnxCase):
    def exec(self, data, inputs, *flags):
        """Returns the results of `exec` as lists of numbers."""
        source = self.folder / "in.safetensors"
        write(source, inputs)
        out = self.folder / "out.safetensors"
        self.succeeds("exec", self.write(data), "--inputs", source, "--outputs",
                      out, *flags)
        codes = {"F32": "f", "F64": "d", "I64": "q"}
        return {name: list(struct.unpack(
            f"<{len(data) // struct.calcsize(codes[dtype])}{codes[dtype]}",
            data)) for name, (dtype, _, data) in read(out)[0].items()}

    @staticmethod
    def floats(*values):
        return "F32", [len(values)], struct.pack(f"<{len(values)}f", *values)

    @staticmethod
    def integers(*values):
        return "I64", [len(values)], struct.pack(f"<{len(values)}q", *values)

    def test_results_have_the_models_names(self):
        data = model([node("Mul", ["x", "w"], ["y"])],
                     [value("x", ["n"])], [value("y", ["n"])],
                     [floats("w", [2], [3, 5])])
        for flags in (), ("--interpret",), ("--fusion", "off"):
            results = self.exec(data, {"x": self.floats(1, 2)}, "--gradients",
                                *flags)
            self.assertEqual(results, {"y": [3, 10], "grad/x": [3, 5],
                                       "grad/w": [1, 2]})

    def test_shapes_may_be_inputs(self):
        data = model([node("Reshape", ["x", "shape"], ["y"]),
                      node("ReduceSum", ["y", "axes"], ["z"], keepdims=0)],
                     [value("x", ["n"]), value("shape", [2], INT64)],
                     [value("z", ["m"])], [integers("axes", [0])])
        inputs = {"x": self.floats(1, 2, 3, 4), "shape": self.integers(2, -1)}
        self.assertEqual(self.exec(data, inputs)["z"], [4, 6])

    def test_tensors_without_elements_may_make_up_shapes(self):
        # There are no dimensions before the first.
        data = model([node("Shape", ["x"], ["none"], end=0),
                      node("Concat", ["none", "one"], ["shape"], axis=0),
                      node("Reshape", ["x", "shape"], ["y"])],
                     [value("x", [2, 2])], [value("y", [4])],
                     [integers("one", [-1])])
        x = "F32", [2, 2], struct.pack("<4f", 1, 2, 3, 4)
        self.assertEqual(self.exec(data, {"x": x})["y"], [1, 2, 3, 4])
        data = model([node("Shape", ["x"], ["none"], end=0),
                      node("Reshape", ["x", "none"], ["y"])],
                     [value("x", [1])], [value("y", [])])
        self.assertEqual(self.exec(data, {"x": self.floats(7)})["y"], [7])

    def test_a_weight_may_be_a_single_number(self):
        data = model([node("Gemm", ["x", "x", "w"], ["y"])],
                     [value("x", [1, 1])], [value("y", [1, 1])],
                     [floats("w", [], [4])])
        x = "F32", [1, 1], struct.pack("<f", 3)
        results = self.exec(data, {"x": x}, "--gradients")
        self.assertEqual((results["y"], results["grad/w"]), ([13], [1]))

    def test_the_greatest_integer_means_to_the_end(self):
        greatest = (1 << 63) - 1
        for end in (node("Constant", [], ["end"], value_ints=[greatest]),
                    node("Constant", [], ["end"],
                         value=integers("", [greatest]))):
            data = model([end, node("Slice", ["x", "one", "end"], ["y"])],
                         [value("x", [3])], [value("y", [2])],
                         [integers("one", [1])])
            self.assertEqual(self.exec(data, {"x": self.floats(1, 2, 3)})["y"],
                             [2, 3])

    def test_values_in_fields_and_in_files(self):
        (self.folder / "data").mkdir()
        (self.folder / "data/w.bin").write_bytes(
            bytes(8) + struct.pack("<2f", 10, 20))
        outside = {"location": "data/w.bin", "offset": 8, "length": 8}
        for weight in (tensor("w", FLOAT, [2], floats=[10, 20]),
                       tensor("w", FLOAT, [2], external=outside)):
            data = model([node("Add", ["x", "w"], ["y"])], [value("x", [2])],
                         [value("y", [2])], [weight])
            self.assertEqual(self.exec(data, {"x": self.floats(1, 2)})["y"],
                             [11, 22])

    def test_batch_statistics_update_those_of_the_population(self):
        nodes = [node("BatchNormalization", ["x", "s", "b", "m", "v"],
                      ["y", "mean", "var"], training_mode=1, momentum=0.5)]
        data = model(nodes, [value("x", [2, 1])],
                     [value(name, [1]) for name in ("mean", "var")],
                     [floats(name, [1], [start]) for name, start in
                      (("s", 1), ("b", 0), ("m", 4), ("v", 3))])
        results = self.exec(data, {"x": ("F32", [2, 1],
                                         struct.pack("<2f", 1, 3))})
        self.assertEqual((results["mean"], results["var"]), ([3], [2]))
        self.assertEqual((results["m"], results["v"]), ([3], [2]))

    def test_functions_of_the_model(self):
        slope = node("LeakyRelu", ["a"], ["t"]) + field(
            5, reference("alpha", "slope"))
        twice = function("Twice", ["a"], ["b"], [
            slope, node("Add", ["t", "t"], ["b"])])
        outer = function("Outer", ["a", "w"], ["b"], [
            node("Twice", ["a"], ["t"], domain="own", slope=0.5),
            node("Mul", ["t", "w"], ["b"])])
        data = model(
            [node("Outer", ["x", "w"], ["t"], domain="own"),
             node("Twice", ["t"], ["y"], domain="own", slope=0.25)],
            [value("x", [2])], [value("y", [2])], [floats("w", [2], [1, 3])],
            functions=[twice, outer])
        results = self.exec(data, {"x": self.floats(-4, 1)}, "--gradients")
        # 2 leaky(w 2 leaky(x, 0.5), 0.25) with the weight w.
        self.assertEqual(results["y"], [-2, 12])
        self.assertEqual(results["grad/w"], [-2, 4])

    def test_symbolic_extents_of_one_name_are_equal(self):
        source = self.folder / "in.safetensors"
        write(source, {"x": self.floats(1, 2), "y": self.floats(1, 2, 3)})
        data = model([node("Identity", ["x"], ["z"])],
                     [value("x", ["n"]), value("y", ["n"])],
                     [value("z", ["n"])])
        self.fails(GRAPH, ["input y", "extent n", "expected 2", "got 3"],
                   "exec", self.write(data), "--inputs", source, "--outputs",
                   self.folder / "out")


class BadOnnxTest(OnnxCase):
    def rejected(self, data, *words, code=GRAPH):
        path = self.write(data)
        self.fails(code, [str(path), *words], "bench", "-a", path,
                   "--iterations", "1")

    def rejected_weight(self, weight, *words):
        self.rejected(model([node("Conv", ["x", "w"], ["y"])],
                           [value("x", ["N", 3, 16, 16])],
                           [value("y", ["N", 5])], [weight]), *words)

    def test_no_model(self):
        # As with --module.
        for name in ("none.onnx", "none.pt2"):
            self.fails(USAGE, [f"cannot read {self.folder / name}: No such"],
                       "bench", "-a", self.folder / name)
        self.rejected(b"", "graph")
        self.rejected(b"no model", "damaged or truncated")
        self.rejected(classifier()[:-9], "damaged or truncated")

    def test_other_opsets(self):
        for opset in 12, 29, 0:
            self.rejected(classifier(opset=opset), "opset",
                         f"expected 13 to 28, got {opset}")

    def test_an_unknown_operator_is_named_with_its_node(self):
        self.rejected(classifier(extra=[node("Mystery", ["h"], ["h2"], "/a/b")]),
                     "Mystery at /a/b: unknown operator")
        self.rejected(classifier(extra=[node("Relu", ["h"], ["h2"], "/a/b",
                                            "com.example")]),
                     "com.example.Relu at /a/b: unknown operator")

    def test_a_function_that_calls_itself(self):
        own = function("Own", ["a"], ["b"], [
            node("Own", ["a"], ["b"], domain="own")])
        self.rejected(model([node("Own", ["x"], ["y"], domain="own")],
                           [value("x", ["N", 3, 16, 16])],
                           [value("y", ["N", 5])], functions=[own]),
                     "functions: expected", "deep")

    def test_arguments_that_no_row_reads(self):
        self.rejected(classifier(extra=[node("Relu", ["h"], ["h2"], "/a/b",
                                            mystery=1)]),
                     "Relu at /a/b: attribute mystery")
        self.rejected(classifier(extra=[node("LeakyRelu", ["h"], ["h2"], "/a/b",
                                            alpha=[1, 2])]),
                     "attribute alpha: expected a number")
        self.rejected(classifier(extra=[node("Add", ["h"], ["h2"], "/a/b")]),
                     "operand 1: expected a tensor, got none")

    def test_a_shape_that_the_step_computes(self):
        self.rejected(
            classifier(extra=[node("Cast", ["h"], ["i"], to=INT64),
                              node("Reshape", ["h", "i"], ["h2"], "/a/b")]),
            "Reshape at /a/b: operand 1, i: expected a constant or a function "
            "of shapes")

    def test_unknown_dtypes(self):
        for dtype, word in ((INT8, "int8"), (STRING, "string"), (77, "77")):
            self.rejected_weight(tensor("w", dtype, [4], bytes(4)),
                                "initializer w", f"dtype {word}")

    def test_bytes_that_do_not_fit_the_shape(self):
        for dims in ([2, 2], [1 << 40, 1 << 40], [-1], [1 << 62, 8]):
            self.rejected_weight(tensor("w", FLOAT, dims, bytes(12)),
                                "initializer w")
        self.rejected_weight(tensor("w", FLOAT, [2], floats=[1]),
                            "initializer w: expected 2 elements, got 1")
        self.rejected_weight(tensor("w", DOUBLE, [3], floats=[1, 2, 3]),
                            "initializer w: expected 3 elements, got 0")
        self.rejected_weight(tensor("w", FLOAT16, [3], bytes(4)),
                            "initializer w: expected 6 bytes, got 4")

    def test_files_outside_of_the_folder(self):
        (self.folder / "w.bin").write_bytes(bytes(16))
        (self.folder / "link.bin").symlink_to("/etc/passwd")
        for location in ("../w.bin", "/etc/passwd", "a/../../w.bin",
                         "link.bin", ""):
            self.rejected_weight(
                tensor("w", FLOAT, [2], external={"location": location}),
                "inside the model's folder")
        for external in ({"location": "none.bin"},
                         {"location": "w.bin", "offset": 12},
                         {"location": "w.bin", "length": 1 << 60},
                         {"location": "w.bin", "offset": -4}):
            self.rejected_weight(tensor("w", FLOAT, [2], external=external),
                                "initializer w")

    def test_tensors_that_are_not_defined(self):
        self.rejected(classifier(extra=[node("Relu", ["later"], ["h2"])]),
                     "tensor later: expected one defined before its use")

    def test_inputs_that_are_no_batches(self):
        inputs = [value("x", ["N", 3]), value("z", [])]
        self.rejected(model([node("Add", ["x", "z"], ["y"])], inputs,
                           [value("y", ["N", 3])]),
                      "expected inputs of a batch", "got f32[N,3] and f32[]")

    def test_flags_of_built_in_models_are_rejected(self):
        path = self.write(classifier())
        self.fails(USAGE, ["--fan"], "bench", "-a", path, "--fan", "fan-in")


if __name__ == "__main__":
    unittest.main()
