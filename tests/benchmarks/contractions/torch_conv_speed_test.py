"""Tests torch_conv_speed.py on lines that oneDNN wrote."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import torch_conv_speed  # pylint: disable=wrong-import-position

REPORT = """onednn_verbose,v1,info,oneDNN v3.9.1
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32,dst:f32,,,64,9.5
onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,src:a,,alg:x,mb8,0.9
onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,src:a,,alg:x,mb8,0.5
onednn_verbose,v1,primitive,exec,cpu,convolution,brgconv:avx512_core,forward_training,src:b,,alg:x,mb8,0.7
onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,backward_weights,src:a,,alg:x,mb8,1.5
"""


class TorchConvSpeedTest(unittest.TestCase):

    def test_reports_are_grouped_by_direction_and_variant(self):
        found = torch_conv_speed.reported(REPORT)
        self.assertEqual(set(found), {"forward", "weight"})
        self.assertEqual(found["forward"], {
            ("jit:avx512_core", "src:a"): [0.9, 0.5],
            ("brgconv:avx512_core", "src:b"): [0.7]})
        self.assertEqual(found["weight"][("jit:avx512_core", "src:a")], [1.5])

    def test_rows_of_conv_speed_name_the_shape(self):
        row = torch_conv_speed.ROW.match(
            "| 6x 8x8, 3x3 of 56x56 | data | fusor_planes:avx512 180 |")
        self.assertEqual(row.groups(), ("6", "8", "8", "3", "56", "data"))


if __name__ == "__main__":
    unittest.main()
