"""Tests archives of torch.export from the command line: import_cli_test.py
BIN."""

import itertools
import json
import math
import operator
import pathlib
import struct
import unittest
import zipfile

from cli_case import GRAPH, USAGE, CliTest
from noise_images import make_images
from safetensors_file import read

EXPORTS = pathlib.Path(__file__).parents[1] / "golden/torch_export"
CONVOLUTIONAL = EXPORTS / "convolutional.pt2"
FLOAT = 7  # PyTorch's ScalarType of float32


class ImportTest(CliTest):
    def entries(self, name="convolutional"):
        """Returns the archive's entries by name, without the folder."""
        with zipfile.ZipFile(EXPORTS / f"{name}.pt2") as archive:
            return {info.filename.split("/", 1)[1]: archive.read(info)
                    for info in archive.infolist()}

    def write(self, entries, compression=zipfile.ZIP_STORED):
        path = self.folder / "model.pt2"
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, data in entries.items():
                archive.writestr("model/" + name, data)
        return path

    def program(self, change, name="convolutional"):
        """Writes an archive whose program `change` has edited."""
        entries = self.entries(name)
        program = json.loads(entries["models/model.json"])
        change(program)
        entries["models/model.json"] = json.dumps(program).encode()
        return self.write(entries)

    def weights_config(self, change):
        entries = self.entries()
        key = "data/weights/model_weights_config.json"
        config = json.loads(entries[key])
        change(config["config"])
        entries[key] = json.dumps(config).encode()
        return self.write(entries)

    def rejected(self, path, *words, code=GRAPH, flags=()):
        self.fails(code, [str(path), *words], "bench", "-a", path,
                   "--iterations", "1", *flags)


class TrainingTest(ImportTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.images = cls.shared / "images"
        make_images(cls.images)

    def train(self, *flags, archive=CONVOLUTIONAL):
        out = self.folder / "out"
        result = self.succeeds(
            "train", self.images, "-a", archive, "-b", "4", "--epochs",
            "1", "--workspace", out, *flags)
        return result, out / "model.safetensors"

    def test_training_starts_from_the_archives_weights(self):
        result, path = self.train("--lr", "1e-30")
        self.assertIn("weights   module:convolutional\n", result.stdout)
        self.assertEqual(self.check_weights(path)["fusor.arch"],
                         "module:convolutional")

    def test_weights_may_have_any_strides_and_offset(self):
        """Each is stored column-major, behind one other element."""
        entries = self.entries()
        key = "data/weights/model_weights_config.json"
        config = json.loads(entries[key])
        for entry in config["config"].values():
            meta = entry["tensor_meta"]
            if meta["dtype"] != FLOAT:
                continue
            sizes = [size["as_int"] for size in meta["sizes"]]
            strides = [math.prod(sizes[:i]) for i in range(len(sizes))]
            file = "data/weights/" + entry["path_name"]
            elements = [entries[file][i:i + 4]
                        for i in range(0, len(entries[file]), 4)]
            stored = list(elements)
            for index, element in zip(
                    itertools.product(*map(range, sizes)), elements):
                stored[sum(map(operator.mul, index, strides))] = element
            entries[file] = b"".join([b"else", *stored])
            meta["strides"] = [{"as_int": stride} for stride in strides]
            meta["storage_offset"] = {"as_int": 1}
        entries[key] = json.dumps(config).encode()
        self.check_weights(self.train("--lr", "1e-30",
                                      archive=self.write(entries))[1])

    def check_weights(self, path):
        """Compares trained weights with those of the archive as exported.
        Returns their metadata."""
        entries = self.entries()
        config = json.loads(
            entries["data/weights/model_weights_config.json"])["config"]
        tensors, metadata = read(path)
        for name, (dtype, shape, data) in tensors.items():
            meta = config[name]["tensor_meta"]
            self.assertEqual(shape, [size["as_int"] for size in meta["sizes"]])
            if "running" not in name:
                stored = entries["data/weights/" + config[name]["path_name"]]
                floats = f"<{len(data) // 4}f"
                for value, start in zip(struct.unpack(floats, data),
                                        struct.unpack(floats, stored)):
                    self.assertAlmostEqual(value, start, 20, name)
        parameters = [name for name, entry in config.items()
                      if entry["is_param"]]
        self.assertEqual(set(parameters) - set(tensors), set())
        return metadata

    def test_a_parameter_without_gradient_is_frozen(self):
        def change(config):
            config["stem.0.weight"]["tensor_meta"]["requires_grad"] = False
        archive = self.weights_config(change)
        out = self.folder / "out"
        self.succeeds("train", self.images, "-a", archive, "-b", "4",
                      "--epochs", "1", "--workspace", out)
        tensors, _ = read(out / "model.safetensors")
        stored = self.entries()
        config = json.loads(
            stored["data/weights/model_weights_config.json"])["config"]
        for name, frozen in ("stem.0.weight", True), ("head.weight", False):
            values = stored["data/weights/" + config[name]["path_name"]]
            self.assertEqual(tensors[name][2] == values, frozen, name)

    def test_a_new_head_is_drawn_and_named(self):
        result, path = self.train("--num-classes", "7")
        self.assertIn("initialised: head.weight, head.bias", result.stdout)
        self.assertEqual(read(path)[0]["head.bias"][1], [7])

    def test_trained_weights_are_evaluated_and_predict(self):
        _, path = self.train()
        flags = ("-a", CONVOLUTIONAL, "--weights", path)
        self.assertIn("top1", self.succeeds("eval", self.images, *flags).stdout)
        image = next(self.images.glob("val/*/*"))
        self.succeeds("predict", image, *flags)

    def test_drawn_weights_depend_on_the_seed(self):
        first, path = self.train("--init", "random", "--lr", "1e-30")
        self.assertNotIn("weights   module", first.stdout)
        drawn = read(path)[0]["stem.0.weight"][2]
        entries = self.entries()
        self.assertNotIn(drawn, entries.values())
        self.fails(USAGE, ["--init random", "--pretrained-weights"], "train",
                   self.images, "-a", CONVOLUTIONAL, "--init", "random",
                   "--pretrained-weights", path)

    def test_an_archives_own_weights_are_evaluated(self):
        result = self.succeeds("eval", self.images, "-a", CONVOLUTIONAL)
        self.assertIn("top1", result.stdout)
        _, path = self.train("--lr", "1e-30")
        with_file = self.succeeds("eval", self.images, "-a", CONVOLUTIONAL,
                                  "--weights", path)
        # Training has updated the running statistics.
        self.assertNotEqual(result.stdout.split("(")[0],
                            with_file.stdout.split("(")[0])
        self.fails(USAGE, ["eval: expected --weights, got none"], "eval", self.images)

    def test_every_command_takes_an_archive(self):
        model = ("-a", CONVOLUTIONAL, "-b", "2")
        self.succeeds("bench", *model, "--iterations", "2", "--amp")
        self.succeeds("compare", *model)
        self.succeeds("plan", *model)
        self.assertIn("golden/make_torch_export.py",
                      self.succeeds("dump", *model, "--emit",
                                    "graph").stdout)
        self.assertIn("conv2d_grad_weight", self.succeeds(
            "opt", CONVOLUTIONAL, "--emit", "train").stdout)
        self.succeeds("compile", *model, "-o", self.folder / "step.fusor")

    def test_flags_of_built_in_models_are_rejected(self):
        for flags in (("--fan", "fan-in"), ("--zero-gamma",),
                      ("--dropout", "0.1")):
            self.rejected(CONVOLUTIONAL, flags[0], code=USAGE, flags=flags)

    def test_a_size_that_the_archive_has_fixed(self):
        self.fails(GRAPH, ["its image size is 16, expected 32"], "bench", "-a",
                   CONVOLUTIONAL, "--image-size", "32")

    def test_a_fixed_batch_is_the_only_one(self):
        def fix(program):
            images = program["graph_module"]["graph"]["tensor_values"]["x"]
            images["sizes"][0] = {"as_int": 3}
        path = self.program(fix)
        result = self.succeeds("bench", "-a", path, "--iterations", "1")
        self.assertIn("images/s", result.stdout)
        self.fails(GRAPH, ["its batch is 3, expected 4"], "bench", "-a", path,
                   "-b", "4")


class BadArchiveTest(ImportTest):
    def test_no_zip_file(self):
        path = self.folder / "model.pt2"
        self.rejected(path, code=USAGE)
        for content in b"", b"no archive":
            path.write_bytes(content)
            self.rejected(path, "expected a zip file")
        path.write_bytes(CONVOLUTIONAL.read_bytes()[:-100])
        self.rejected(path, "zip")

    def test_missing_entries(self):
        for entry in ("models/model.json", "byteorder", "data/weights/weight_3"):
            entries = self.entries()
            del entries[entry]
            self.rejected(self.write(entries), entry)

    def test_compressed_entries(self):
        self.rejected(self.write(self.entries(), zipfile.ZIP_DEFLATED),
                     "compressed")

    def test_big_endian(self):
        self.rejected(self.write({**self.entries(), "byteorder": b"big"}),
                     "byteorder: expected little, got big")

    def test_json_of_another_form(self):
        for text in (b"", b"[", b"[]", b"{}", b'{"graph_module": 7}'):
            self.rejected(self.write({**self.entries(),
                                     "models/model.json": text}), "model")

    def test_with_blocks(self):
        def block(program, kind):
            return next(node["inputs"] for node in
                        program["graph_module"]["graph"]["nodes"]
                        if node["target"].endswith(kind))

        def autocast(program):
            block(program, "autocast")[2]["arg"]["as_bool"] = True

        def operands(program):
            block(program, "grad_enabled").pop()

        def results(program):
            block(program, "grad_enabled")[1]["arg"]["as_graph"]["graph"][
                "outputs"].pop()

        def number(program):
            block(program, "grad_enabled")[-1]["arg"] = {"as_int": 1}

        def nested(program):
            graph = block(program, "grad_enabled")[1]["arg"]["as_graph"]["graph"]
            for _ in range(20):
                graph["nodes"] = [{
                    "target": "torch.ops.higher_order.wrap_with_set_grad_enabled",
                    "inputs": [{"name": "", "arg": {"as_bool": True}},
                               {"name": "", "arg": {"as_graph": {
                                   "name": "in", "graph": {
                                       "inputs": [], "outputs": [],
                                       "nodes": graph["nodes"]}}}}],
                    "outputs": [], "metadata": {}}]

        for change, words in (
                (autocast, "expected autocast to be off within a model"),
                (operands, "operands, got"), (results, "results, got"),
                (number, "expected a name"),
                (nested, "too many regions in each other")):
            with self.subTest(change=change.__name__):
                self.rejected(self.program(change, "programs/experts"), words)

    def test_pickled_tensors(self):
        def change(config):
            config["stem.0.weight"]["use_pickle"] = True
        self.rejected(self.weights_config(change), "stem.0.weight", "pickled")

    def test_sizes_and_strides_beyond_the_bytes(self):
        for field, value in (("sizes", 1 << 39), ("sizes", -1), ("sizes", 0),
                             ("strides", 1 << 62), ("strides", -1)):
            def change(config, field=field, value=value):
                meta = config["stem.0.weight"]["tensor_meta"]
                meta[field][0] = {"as_int": value}
            path = self.weights_config(change)
            self.fails(GRAPH, [], "bench", "-a", path)

        def empty_statistic(config):
            config["stem.1.running_mean"]["tensor_meta"]["sizes"] = [
                {"as_int": 0}]
        self.rejected(self.weights_config(empty_statistic))

    def test_unknown_dtypes(self):
        for number, word in ((9, "complex32"), (77, "unknown dtype 77"),
                             ("7", "expected an integer")):
            def change(config, number=number):
                config["stem.0.weight"]["tensor_meta"]["dtype"] = number
            self.rejected(self.weights_config(change), "stem.0.weight", word)

    def test_complex_parameters_inputs_and_operators(self):
        entries = self.entries("programs/spectra")
        key = "data/weights/model_weights_config.json"
        config = json.loads(entries[key])
        config["config"]["filter"]["tensor_meta"].update(
            dtype=10, sizes=[{"as_int": 4}, {"as_int": 3}],
            strides=[{"as_int": 3}, {"as_int": 1}])
        entries[key] = json.dumps(config).encode()
        self.rejected(self.write(entries), "filter: a complex parameter")

        def make_complex(program, name):
            values = program["graph_module"]["graph"]["tensor_values"]
            values[name]["dtype"] = 10
        self.rejected(self.program(lambda p: make_complex(p, "x")),
                      "input x: expected real numbers")
        self.rejected(self.program(lambda p: make_complex(p, "leaky_relu")),
                      "aten.leaky_relu", "unknown operator of complex numbers")

    def test_another_schema(self):
        def change(program):
            program["schema_version"]["major"] = 9
        self.rejected(self.program(change), "schema_version: expected 8, got 9")

    def test_an_unknown_operator_names_the_python_line(self):
        def change(program):
            for node in program["graph_module"]["graph"]["nodes"]:
                node["target"] = node["target"].replace("leaky_relu", "mystery")
        self.rejected(self.program(change), "aten.mystery.default at ",
                     "make_torch_export.py:", "unknown operator")

    def test_an_argument_that_no_row_reads(self):
        def change(program):
            for node in program["graph_module"]["graph"]["nodes"]:
                if ".silu." in node["target"]:
                    node["inputs"].append({"name": "beta", "kind": 1,
                                           "arg": {"as_float": 2.0}})
        self.rejected(self.program(change), "aten.silu", "argument beta")

    def test_a_tensor_used_before_its_definition(self):
        def change(program):
            program["graph_module"]["graph"]["nodes"].reverse()
        self.rejected(self.program(change), "defined before its use")

    def test_sizes_that_overflow(self):
        def change(program):
            nodes = program["graph_module"]["graph"]["nodes"]
            nodes.insert(0, {
                "target": "_operator.mul", "metadata": {},
                "inputs": [{"name": name, "arg": {"as_int": 1 << 62}, "kind": 1}
                           for name in "ab"],
                "outputs": [{"as_sym_int": {"as_name": "huge"}}]})
        self.rejected(self.program(change), "mul", "out of range")

    def test_a_result_without_a_batch(self):
        self.rejected(EXPORTS / "programs/language.pt2", "first result: "
                      "expected floats [2,..], got f32[]")

    @staticmethod
    def insert(program, before, nodes):
        """Inserts operators before the first `before` and returns its first
        argument. `nodes`: rows of target, tensor ("": that argument), result
        and further arguments."""
        graph = program["graph_module"]["graph"]["nodes"]
        at = next(i for i, node in enumerate(graph)
                  if node["target"].endswith(before))
        argument = graph[at]["inputs"][0]
        for target, tensor, result, more in reversed(nodes):
            inputs = [{"name": "self", "kind": 1, "arg": (
                {"as_tensor": {"name": tensor}} if tensor
                else argument["arg"])}]
            inputs += [{"name": name, "arg": value, "kind": 1}
                       for name, value in more.items()]
            graph.insert(at, {
                "target": f"torch.ops.aten.{target}", "metadata": {},
                "inputs": inputs,
                "outputs": [{"as_tensor": {"name": result}}]})
        return argument

    def test_in_place_writes_to_copies_are_rejected(self):
        def change(program):
            self.insert(program, "leaky_relu.default", [
                ("reshape.default", "", "flat", {"shape": {"as_ints": [-1]}}),
                ("relu_.default", "flat", "wrote", {})])
        self.rejected(self.program(change), "clone()")

    def test_operators_on_no_elements_are_rejected(self):
        def change(program):
            argument = self.insert(program, "leaky_relu.default", [
                ("narrow.default", "", "none", {
                    "dim": {"as_int": 1}, "start": {"as_int": 0},
                    "length": {"as_int": 0}}),
                ("sum.default", "none", "nothing", {}),
                ("add.Tensor", "", "read", {
                    "other": {"as_tensor": {"name": "nothing"}}})])
            argument["arg"] = {"as_tensor": {"name": "read"}}
        self.rejected(self.program(change), "expected tensors with elements, "
                      "got f32[32,0,8,8]")


if __name__ == "__main__":
    unittest.main()
