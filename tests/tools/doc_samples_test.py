#!/usr/bin/env python3
"""The sample outputs in the documents must be what their commands print.

    doc_samples_test.py FUSOR
"""

import pathlib
import sys
import unittest

import doc_samples
from doc_samples import DOCUMENTS, ROOT, Comparison, difference, samples_of

BIN = pathlib.Path(sys.argv.pop(1)).resolve().parent

PAGE = """\
# Use

    fusor compile -a net
    fusor compile -a net | grep \\
        cache

prints

```
cache     1 hits
```

and this:

<!-- sample: not run, it needs a GPU -->

```
gpu
```

# More

    fusor: nothing was run here

```yaml
a: b
```

<!-- sample: prepare
export A=1
-->

```sh
build/bin/fusor opt - <<'EOF'
graph

EOF
```

    ...
    done
"""


class DocumentsTest(unittest.TestCase):

    def test_every_sample_is_what_its_command_prints(self):
        exact = doc_samples.is_machine_of_samples(BIN)

        def report(sample, news):
            with self.subTest(sample.name):
                if isinstance(news, AssertionError):
                    raise news
                if news != sample.block.lines:
                    self.fail(
                        f"`{sample.commands[-1]}` prints something else:\n" +
                        difference(sample.block.lines, news) + "\nRewrite "
                        f"samples: tests/tools/doc_samples.py {BIN} --update")

        for document in DOCUMENTS:
            doc_samples.check_document(document, BIN, exact, report)


class SamplesTest(unittest.TestCase):

    def test_belong_to_the_commands_before_them(self):
        first, marked, lost, last = samples_of("PAGE.md", PAGE)
        self.assertEqual(first.name, "PAGE.md:10")
        self.assertEqual(first.block.lines, ["cache     1 hits"])
        self.assertEqual(first.commands, [
            "fusor compile -a net",
            "fusor compile -a net | grep \\\n    cache"])
        self.assertIsNone(marked.commands)
        self.assertEqual(marked.problem, "")
        self.assertIn("no commands before it", lost.problem)
        self.assertEqual(last.commands, [
            "build/bin/fusor opt - <<'EOF'\ngraph\n\nEOF"])
        self.assertEqual(last.prepare.strip(), "export A=1")
        self.assertEqual(last.block.lines, ["...", "done"])

    def test_few_are_not_run(self):
        marked = [sample.name for document in DOCUMENTS for sample in
                  samples_of(document, (ROOT / document).read_text())
                  if sample.commands is None and not sample.problem]
        self.assertLessEqual(len(marked), 4, marked)


class ComparisonTest(unittest.TestCase):

    def test_times_vary_and_counts_do_not(self):
        same = Comparison(exact=True).same
        before = "trained   20 steps in 1.0 s, 85.04 images/s, loss 2.8 -> 0.4"
        self.assertTrue(same(before, before.replace("1.0 s, 8", "12.5 s, ")))
        self.assertFalse(same(before, before.replace("20 steps", "21 steps")))
        self.assertFalse(same(before, before.replace("0.4", "0.5")))
        self.assertTrue(same("trained ... -> 0.4", before))

    def test_on_other_machines_words_alone_are_compared(self):
        same = Comparison(exact=False).same
        self.assertTrue(same("net for cpu-avx2, 3 calls, -1.5e-06",
                             "net for cpu-avx512, 14 calls, 12"))
        self.assertFalse(same("3 calls", "3 kernels"))

    def test_lines_that_changed_are_replaced_between_elisions(self):
        output = ["start", "a 1", "b 2 and more", "c 3", "middle", "d 4", "end"]
        fresh = Comparison(exact=True).fresh
        right = ["...", "b 2 ... more", "c 3", "  ...", "end"]
        self.assertEqual(fresh(right, output), right)
        self.assertEqual(
            fresh(["...", "b 2 ... more", "c 5", "  ...", "ending"], output),
            right)
        self.assertEqual(fresh(["start", "a 1"], output), output)
        self.assertEqual(fresh(["start", "..."], output), ["start", "..."])


if __name__ == "__main__":
    unittest.main()
