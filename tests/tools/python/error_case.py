"""Base of the tests of the Python package."""

import unittest

import fusor


class ErrorCase(unittest.TestCase):
    def fails(self, code, words, function, *args, **kwargs):
        with self.assertRaises(fusor.Error) as caught:
            function(*args, **kwargs)
        message = str(caught.exception)
        self.assertEqual(caught.exception.code, code, message)
        self.assertNotIn("\n", message)
        for word in words:
            self.assertIn(word, message)
