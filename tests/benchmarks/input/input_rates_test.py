"""Tests input_rates.py with programs that print given rates."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import input_rates  # noqa: E402


class InputRatesTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, name, body):
        path = self.folder / name
        path.write_text(f"#!/bin/sh\necho {name} >> {self.folder}/calls\n{body}\n")
        path.chmod(0o755)
        return [path]

    def test_rounds_interleave_and_a_failing_program_is_left_out(self):
        fixed = 'echo \'{"images_per_second": %d}\''
        programs = {
            input_rates.REFERENCE: self.program("folder", fixed % 100),
            "fast": self.program("fast", fixed % 250),
            "broken": self.program("broken", "exit 1"),
            "missing": [self.folder / "nothing"]}
        rates = input_rates.measure(programs, 2, 10)
        self.assertEqual(rates, {input_rates.REFERENCE: [100, 100],
                                 "fast": [250, 250]})
        self.assertEqual((self.folder / "calls").read_text().split(),
                         ["folder", "fast", "broken", "fast", "folder"])
        self.assertEqual(input_rates.table(rates), [
            {"program": input_rates.REFERENCE, "images_per_second": 100,
             "ratio": 1},
            {"program": "fast", "images_per_second": 250, "ratio": 2.5}])


if __name__ == "__main__":
    unittest.main()
