"""The notebook of tests/examples must run, and print what it shows."""

import pathlib
import re
import shutil
import sys
import tempfile
import unittest

try:
    import nbclient
    import nbformat
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

TESTS = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOK = TESTS / "examples/training_step.ipynb"
ARCHIVE = "golden/torch_export/convolutional.pt2"


class NotebookTest(unittest.TestCase):

    def test_it_trains_and_shows_its_reports(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name) / "examples"
            folder.mkdir()
            (folder.parent / ARCHIVE).parent.mkdir(parents=True)
            shutil.copy(TESTS / ARCHIVE, folder.parent / ARCHIVE)
            notebook = nbformat.read(NOTEBOOK, as_version=4)
            nbclient.NotebookClient(
                notebook, timeout=300, kernel_name="python3",
                resources={"metadata": {"path": str(folder)}}).execute()
            self.assertGreater(
                (folder / "weights.safetensors").stat().st_size, 1000)
        outputs = [output for cell in notebook.cells
                   for output in cell.get("outputs", [])]
        text = "".join(output.get("text", "") for output in outputs)
        first, last = map(float, re.search(r"loss (\S+) -> (\S+)",
                                           text).groups())
        self.assertLess(last, first / 2)
        shown = [output["data"] for output in outputs if "data" in output]
        pages = [data["text/html"] for data in shown if "text/html" in data]
        self.assertEqual(len(pages), 2)
        for page in pages:
            self.assertIn("&lt;!DOCTYPE html&gt;", page)
        self.assertIn("'top1': 1.0", shown[-1]["text/plain"])
        self.assertEqual(nbformat.read(NOTEBOOK, as_version=4).cells[1].outputs,
                         [], "stored with outputs")


if __name__ == "__main__":
    unittest.main()
