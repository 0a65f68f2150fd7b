"""Tests auto_choice.py with given speeds."""

import contextlib
import io
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import auto_choice  # noqa: E402


class GivenSpeeds:
    """Measures 100 images/s, less without fusion and with mixed precision."""

    def __init__(self):
        self.steps = {}  # seconds per step that were expected

    def choose(self, budget):
        report = {"settings": {"--batch-size": "8"}, "trials": [{}]}
        return report, ["--choices", "auto"], f"{budget} s\n"

    def tuned(self, flags):
        return [*flags, "--choices", "tuned"]

    def measure(self, flags, seconds_per_step=None):
        name = " ".join(map(str, flags))
        self.steps.setdefault(name, []).append(seconds_per_step)
        return (100 - 30 * ("off" in flags) - 5 * ("--amp" in flags)
                + 10 * ("tuned" in flags))


class AutoChoiceTest(unittest.TestCase):

    def test_the_fastest_choices_are_measured_again(self):
        bench = GivenSpeeds()
        with contextlib.redirect_stdout(io.StringIO()) as text:
            speeds, repeated = auto_choice.survey(bench, 60, [4, 8], 2)
        self.assertEqual(text.getvalue(), "60 s\n")
        self.assertEqual(len(speeds), 1 + 8 + 4)
        self.assertEqual(speeds["--auto"], 100)
        self.assertEqual(speeds["--fusion on -b 4, tuned"], 110)
        self.assertEqual(speeds["--amp --fusion off -b 8"], 65)
        self.assertEqual(bench.steps["--amp --fusion off -b 8"], [None])
        self.assertEqual(bench.steps["--fusion on -b 8"], [None, .08, .08])
        self.assertNotIn("--fusion off -b 8", repeated)
        self.assertIn("--amp --fusion on -b 4, tuned", repeated)


if __name__ == "__main__":
    unittest.main()
