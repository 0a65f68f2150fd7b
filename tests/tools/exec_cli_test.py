"""Tests `fusor exec` from the command line: exec_cli_test.py BIN."""

import math
import pathlib
import random
import re
import struct
import unittest

from cli_case import GRAPH, USAGE, CliTest
from safetensors_file import read, write

EXPORTS = pathlib.Path(__file__).parents[1] / "golden/torch_export"

# y = x * w + 1 on two numbers. z is the integer part of y.
MODULE = """graph affine {
  %x = data : f32[2]
  %w = weight {init="constant", value=3.0} : f32[2]
  %one = constant() {dtype="f32", shape=[2], value=[1.0]} : f32[2]
  %product = mul(%x, %w) : f32[2]
  %y = add(%product, %one) : f32[2]
  %z = cast(%y) {dtype="i32"} : i32[2]
  return %y as "y", %z as "z"
}
"""


def floats(*values):
    return "F32", [len(values)], struct.pack(f"<{len(values)}f", *values)


class ExecTest(CliTest):
    def exec(self, module, inputs, *flags):
        """Returns the results of `exec` as lists of numbers."""
        source = self.folder / "in.safetensors"
        write(source, inputs)
        out = self.folder / "out.safetensors"
        self.succeeds("exec", module, "--inputs", source, "--outputs", out,
                      *flags)
        codes = {"F32": "f", "F64": "d", "I32": "i", "I64": "q"}
        return {name: list(struct.unpack(
            f"<{len(data) // struct.calcsize(codes[dtype])}{codes[dtype]}",
            data)) for name, (dtype, _, data) in read(out)[0].items()}

    def affine(self):
        path = self.folder / "affine.txt"
        path.write_text(MODULE)
        return path

    def test_results_and_gradients_of_a_text_module(self):
        for flags in (), ("--interpret",), ("--fusion", "off"):
            with self.subTest(flags=flags):
                results = self.exec(
                    self.affine(), {"x": floats(2, 5), "w": floats(0.5, 2),
                                    "grad/y": floats(1, 10)},
                    "--gradients", *flags)
                self.assertEqual(results, {
                    "y": [2, 11], "z": [2, 11], "grad/x": [0.5, 20],
                    "grad/w": [2, 50]})

    def test_state_without_a_tensor_has_its_initial_value(self):
        self.assertEqual(self.exec(self.affine(), {"x": floats(1, 2)})["y"],
                         [4, 7])

    def test_a_given_weight_needs_no_initialiser(self):
        path = self.folder / "plain.txt"
        path.write_text(MODULE.replace(' {init="constant", value=3.0}', ""))
        inputs = {"x": floats(1, 2), "w": floats(10, 20)}
        for flags in (), ("--gradients",):
            self.assertEqual(self.exec(path, inputs, *flags)["y"], [11, 41])

    def test_archives_run_as_they_were_exported(self):
        golden, _ = read(EXPORTS / "windowed.safetensors")
        inputs = {"x": golden["images"]}
        exact = self.exec(EXPORTS / "windowed.pt2", inputs, "--gradients",
                          "--interpret")
        compiled = self.exec(EXPORTS / "windowed.pt2", inputs, "--gradients")
        self.assertEqual(set(exact), set(compiled))
        # This model has no modes, so its results are those of evaluation.
        logits = struct.unpack("<15d", golden["logits"][2])
        for value, stored in zip(exact["output0"], logits):
            self.assertAlmostEqual(value, stored, 9)
        for name, values in exact.items():
            scale = max(map(abs, values)) + 1e-3
            for value, other in zip(values, compiled[name]):
                self.assertLess(abs(value - other), 1e-4 * scale, name)

    def test_blocks_without_autocast_keep_their_precision(self):
        """The block's matmuls and their gradients, unlike others, stay f32."""
        path = EXPORTS / "programs/experts"
        inputs, _ = read(path.with_suffix(".in.safetensors"))
        dump = self.folder / "dump"
        self.exec(path.with_suffix(".pt2"), inputs, "--amp", "--gradients",
                  "--dump-to", dump, "--dump-pass", "mixed_precision")
        (text,) = dump.glob("*/*mixed_precision.after.txt")
        source = (EXPORTS.parent / "torch_programs.py").read_text().split("\n")
        block = next(i for i, line in enumerate(source, 1)
                     if "torch.autocast(" in line)
        types = dict(re.findall(r"(%[\w.]+) = .* : (\w+)\[", text.read_text()))
        operands = {False: [], True: []}
        for a, b, line in re.findall(
                r"= matmul\((%[\w.]+), (%[\w.]+)\).*:(\d+)\"",
                text.read_text()):
            within = int(line) in (block + 1, block + 2)
            operands[within] += [types[a], types[b]]
        self.assertEqual(operands[True], ["f32"] * 12)
        self.assertEqual(set(operands[False]), {"bf16"})

    def test_tokens_and_pixels_in_any_results_out(self):
        codes = {"F32": "f", "F64": "d", "I64": "q"}

        def numbers(tensor):
            dtype, _, data = tensor
            code = codes[dtype]
            return struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}",
                                 data)
        for name in ("language", "segmenter", "recurrent", "functions",
                     "places", "rearranged", "vectors", "cells", "losses",
                     "pooling", "sampled", "experts", "spectra",
                     "scattered", "contracted", "numeric", "random"):
            path = EXPORTS / "programs" / name
            inputs, _ = read(path.with_suffix(".in.safetensors"))
            expected, _ = read(path.with_suffix(".out.safetensors"))
            for flags, tolerance in ((("--interpret",), 1e-10), ((), 2e-5),
                                     (("--fusion", "off"), 2e-5)):
                with self.subTest(name=name, flags=flags):
                    results = self.exec(path.with_suffix(".pt2"), inputs,
                                        "--gradients", *flags)
                    self.assertEqual(set(results), set(expected))
                    for key, tensor in expected.items():
                        stored = numbers(tensor)
                        scale = max(0.1, *map(abs, stored))
                        for value, other in zip(results[key], stored):
                            self.assertLess(abs(value - other),
                                            tolerance * scale, key)

    def test_a_result_is_a_view_of_a_transposed_product(self):
        module = self.folder / "heads.txt"
        module.write_text("""graph heads {
  %x = data : f32[2,3,4,6]
  %w = data : f32[2,3,6,8]
  %y = matmul(%x, %w) {transpose_a=false, transpose_b=false} : f32[2,3,4,8]
  %t = transpose(%y) {permutation=[0,2,1,3]} : f32[2,4,3,8]
  %r = reshape(%t) {shape=[2,4,24]} : f32[2,4,24]
  return %r as "r"
}
""")
        draw = random.Random(0)
        inputs = {name: ("F32", shape, struct.pack(
            f"<{math.prod(shape)}f",
            *(draw.random() for _ in range(math.prod(shape)))))
            for name, shape in (("x", [2, 3, 4, 6]), ("w", [2, 3, 6, 8]))}
        expected = self.exec(module, inputs, "--interpret")["r"]
        for value, other in zip(self.exec(module, inputs)["r"], expected):
            self.assertAlmostEqual(value, other, 5)

    def test_tied_parameters_are_one_parameter(self):
        expected, _ = read(EXPORTS / "programs/language.out.safetensors")
        self.assertIn("grad/tokens.weight", expected)
        self.assertNotIn("grad/head.weight", expected)

    def test_wrong_inputs_are_named(self):
        module, source = self.affine(), self.folder / "in.safetensors"
        arguments = ("exec", module, "--inputs", source, "--outputs",
                     self.folder / "out")
        write(source, {})
        self.fails(USAGE, ["tensor x", "f32[2]"], *arguments)
        write(source, {"x": floats(1, 2, 3)})
        self.fails(USAGE, ["tensor x", "f32[2]", "f32[3]"], *arguments)
        write(source, {"x": floats(1, 2)})
        self.fails(USAGE, ["tensor w", "--interpret"], *arguments,
                   "--interpret")
        write(source, {"x": ("F32", [1, 3, 16], bytes(192))})
        self.fails(GRAPH, ["input x", "[-1,3,16,16]", "[1,3,16]"], "exec",
                   EXPORTS / "windowed.pt2", "--inputs", source, "--outputs",
                   self.folder / "out")


if __name__ == "__main__":
    unittest.main()
