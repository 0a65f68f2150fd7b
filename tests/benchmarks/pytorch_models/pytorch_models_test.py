"""Tests the parts of pytorch_models.py that need no PyTorch."""

import argparse
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import pytorch_models  # noqa: E402


def row_of(**more):
    return {"parameters": 1000, "nodes": 7, "kernels": 3, "library_calls": 2,
            "compile_seconds": 0.5, "planned_mib": 10.0, **more}


def measured():
    row = row_of(speed={
        "eager": {"fusor": [30.0, 40.0, 50.0], "torch tuned": [10.0, 40.0, 20.0],
                  "torch tuned nchw": [10.0, 10.0, 10.0]}})
    for fusor, torch in ((2e-6, 1e-6), (3e-6, 1e-6), (8e-6, 1e-6)):
        pytorch_models.add_errors(row, {
            "fp32": {"fusor": fusor, "torch": torch},
            "bf16": {"fusor": 0.01, "torch": 0.02}})
    return row


class PytorchModelsTest(unittest.TestCase):

    def cells(self, results, name):
        text = pytorch_models.report(results)
        line = next(line for line in text.splitlines()
                    if line.startswith(f"| {name} |"))
        return [cell.strip() for cell in line.split("|")[1:-1]]

    def test_ratios_are_medians_over_seeds_and_rounds(self):
        results = {"vgg11": measured()}
        self.assertEqual(self.cells(results, "vgg11"), [
            "vgg11", "7", "3", "2", "1.50", "0.50", "10", "3.00", "0.50",
            "2.50"])
        text = pytorch_models.report(results)
        self.assertIn("fp32: median 3.00 of 1 models, above 2 for 1.", text)
        self.assertIn("bf16: median 0.50 of 1 models, above 2 for 0.", text)

    def test_what_is_not_measured_is_empty(self):
        results = {"vgg11": row_of(), "vgg13": {"failure": "no rule"}}
        self.assertEqual(self.cells(results, "vgg11")[-2:], ["", ""])
        self.assertEqual(self.cells(results, "vgg13")[1:], ["no rule"] + 7 * [""])
        self.assertIn("1 of 2 models import", pytorch_models.report(results))

    def test_only_what_is_missing_is_measured(self):
        args = argparse.Namespace(seeds=5, speed=["eager", "torch.compile"])
        row = measured()
        self.assertEqual(list(pytorch_models.missing_seeds(args, row)), [3, 4])
        self.assertEqual(pytorch_models.missing_parts(args, "vgg11", row),
                         ["torch.compile"])
        args = argparse.Namespace(seeds=3, speed=["eager"])
        self.assertTrue(pytorch_models.complete(args, "vgg11", row))
        self.assertFalse(pytorch_models.complete(args, "vgg11", row_of()))
        self.assertTrue(pytorch_models.complete(args, "vgg11",
                                                row_of(parameters=1e9)))
        # Other models have no steps to be timed beside.
        row.pop("speed")
        self.assertEqual(pytorch_models.missing_parts(args, "lstm", row), [])


if __name__ == "__main__":
    unittest.main()
