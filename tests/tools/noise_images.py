"""Makes a data set of small images for command-line tests."""

import random
import struct
import zlib


def png(generator):
    """Returns a PNG of 32 x 32 pixels of noise."""
    def chunk(kind, body):
        return (struct.pack(">I", len(body)) + kind + body
                + struct.pack(">I", zlib.crc32(kind + body)))
    rows = b"".join(b"\0" + generator.randbytes(96) for _ in range(32))
    return (b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def make_images(folder, train=4, val=2):
    """Makes five classes with so many images for training and evaluation."""
    generator = random.Random(1)
    for split, count in ("train", train), ("val", val):
        for name in "abcde":
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                (folder / split / name / f"{i}.png").write_bytes(png(generator))
