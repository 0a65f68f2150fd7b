#!/usr/bin/env python3
"""Writes tests/golden/images: small image files, and their pixels by Pillow.

    pip install pillow numpy
    tests/golden/make_image_files.py

cases.txt has one line per file: its name, width and height. pixels.bin has all
pixels that Image.open(FILE).convert("RGB") returns, as RGB bytes, rows from top
to bottom. Pillow does not write some kinds of files; this script does.
"""

import io
import pathlib
import struct

import numpy as np
from PIL import Image

FOLDER = pathlib.Path(__file__).resolve().parent / "images"
WIDTH, HEIGHT = 18, 13


def picture(width=WIDTH, height=HEIGHT):
    """Smooth parts, an edge and noise."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(1).integers(0, 40, (height, width, 3))
    rgb = np.stack([x * 9, y * 15, 255 - x * 5 - y * 4], axis=-1) + noise
    rgb[y > x] = 255 - rgb[y > x]
    return Image.fromarray(np.clip(rgb, 0, 255).astype(np.uint8), "RGB")


def with_alpha(image):
    levels = np.arange(WIDTH * HEIGHT) * 7 % 256
    image = image.convert("RGBA")
    image.putalpha(Image.fromarray(
        levels.astype(np.uint8).reshape(HEIGHT, WIDTH), "L"))
    return image


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def webp_files():
    image = picture()
    yield "lossy.webp", saved(image, "WEBP", quality=80)
    yield "lossless.webp", saved(image, "WEBP", lossless=True)
    yield "lossy_alpha.webp", saved(with_alpha(image), "WEBP", quality=70)
    yield "lossless_alpha.webp", saved(with_alpha(image), "WEBP", lossless=True,
                                       exact=True)
    yield "animated.webp", saved(
        image, "WEBP", save_all=True, duration=100, quality=80,
        append_images=[image.rotate(90).resize(image.size)])
    # A first frame that covers only a part of the canvas.
    chunk = saved(image, "WEBP", quality=80)[12:]

    def number(value):
        return value.to_bytes(3, "little")

    frame = (number(2) + number(1) + number(WIDTH - 1) + number(HEIGHT - 1) +
             number(100) + b"\0" + chunk)
    body = (b"WEBP" + b"VP8X" + struct.pack("<IB", 10, 2) + b"\0\0\0" +
            number(24) + number(17) + b"ANIM" + struct.pack("<IIH", 6, 0, 0) +
            b"ANMF" + struct.pack("<I", len(frame)) + frame)
    yield "placed.webp", b"RIFF" + struct.pack("<I", len(body)) + body


def gif_files():
    image = picture().quantize(60)
    yield "colours.gif", saved(image, "GIF", interlace=0)
    yield "interlaced.gif", saved(image, "GIF", interlace=1)
    yield "grey.gif", saved(picture().convert("L"), "GIF")
    yield "bits.gif", saved(picture().convert("1"), "GIF")
    other = picture().rotate(180).quantize(200)
    yield "animated.gif", saved(image, "GIF", save_all=True, interlace=0,
                                append_images=[other])
    # A frame that covers only a part of the image, with a transparent colour.
    for name, options in [("placed.gif", {}),
                          ("placed_transparent.gif", {"transparency": 5})]:
        file = bytearray(saved(image, "GIF", interlace=0, **options))
        struct.pack_into("<HH", file, 6, WIDTH + 7, HEIGHT + 4)
        frame = file.index(b"," + struct.pack("<HHHH", 0, 0, WIDTH, HEIGHT))
        struct.pack_into("<HH", file, frame + 1, 3, 2)
        yield name, bytes(file)
    # An image that is smaller than its frame.
    file = bytearray(saved(image, "GIF", interlace=0))
    struct.pack_into("<HH", file, 6, 4, 4)
    yield "small_screen.gif", bytes(file)


def bmp(rows, bits, compression=0, palette=b"", masks=b"", height=HEIGHT):
    """A bitmap with the usual header of 40 bytes."""
    start = 14 + 40 + len(masks) + len(palette)
    return (b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) +
            struct.pack("<IiiHHIIiiII", 40, WIDTH, height, 1, bits, compression,
                        len(rows), 0, 0, len(palette) // 4, 0) +
            masks + palette + rows)


def padded(rows):
    return b"".join(row + bytes(-len(row) % 4) for row in rows)


def bmp_files():
    image = picture()
    pixels = np.asarray(image)
    yield "rgb.bmp", saved(image, "BMP")
    yield "rgba.bmp", saved(with_alpha(image), "BMP")
    yield "grey.bmp", saved(image.convert("L"), "BMP")
    yield "bits.bmp", saved(image.convert("1"), "BMP")
    yield "colours.bmp", saved(image.quantize(100), "BMP")

    few = image.quantize(16)
    indices = np.asarray(few)
    palette = np.zeros((16, 4), np.uint8)
    colours = np.array(few.getpalette()).reshape(-1, 3)[:16]
    palette[:len(colours), :3] = colours[:, ::-1]
    nibbles = padded((row[::2] * 16 + row[1::2]).astype(np.uint8).tobytes()
                     for row in indices[::-1])
    yield "nibbles.bmp", bmp(nibbles, 4, palette=palette.tobytes())

    bgr = pixels[:, :, ::-1]
    yield "top_down.bmp", bmp(padded(row.tobytes() for row in bgr), 24,
                              height=-HEIGHT)
    wide = pixels.astype(np.uint16)
    red, green, blue = wide[:, :, 0], wide[:, :, 1], wide[:, :, 2]
    words = (red >> 3) << 10 | (green >> 3) << 5 | blue >> 3
    yield "words.bmp", bmp(padded(row.tobytes() for row in words[::-1]), 16)
    words = (red >> 3) << 11 | (green >> 2) << 5 | blue >> 3
    yield "masked_words.bmp", bmp(
        padded(row.tobytes() for row in words[::-1]), 16, compression=3,
        masks=struct.pack("<III", 0xf800, 0x7e0, 0x1f))
    four = np.zeros((HEIGHT, WIDTH, 4), np.uint8)
    four[:, :, 1:] = bgr
    yield "masked.bmp", bmp(
        padded(row.tobytes() for row in four[::-1]), 32, compression=3,
        masks=struct.pack("<III", 0xff000000, 0xff0000, 0xff00))
    # Header of OS/2.
    start = 14 + 12
    rows = padded(row.tobytes() for row in bgr[::-1])
    yield "short_header.bmp", (
        b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) +
        struct.pack("<IHHHH", 12, WIDTH, HEIGHT, 1, 24) + rows)
    # Runs, single pixels, a skip and rows that end early.
    grey = b"".join(bytes([i, 255 - i, i // 2, 0]) for i in range(256))
    runs = b""
    for y in range(HEIGHT):
        if y == 5:
            runs += b"\x03\x60" + b"\x00\x02\x04\x01"  # to column 7 of row 6
        elif y == 6:
            runs += b"\x05\x11" + b"\x00\x00"
        elif y % 2 == 0:
            runs += bytes([9, 10 * y, 9, 10 * y + 100]) + b"\x00\x00"
        else:
            runs += b"\x00\x07" + bytes(range(y, y + 7)) + b"\x00"
            runs += b"\x00\x04" + bytes([1, 2, 3, 4]) + b"\x07\x50\x00\x00"
    yield "runs.bmp", bmp(runs + b"\x00\x01", 8, compression=1, palette=grey)


def netpbm_files():
    image = picture()
    yield "rgb.ppm", saved(image, "PPM")
    yield "grey.pgm", saved(image.convert("L"), "PPM")
    levels = np.asarray(image) >> 3
    yield "levels.ppm", (b"P6 # comment\n# another\r%d\t%d\n31\n" %
                         (WIDTH, HEIGHT) + levels.tobytes())
    grey = np.asarray(image.convert("L")) % 101
    yield "levels.pgm", b"P5\n%d %d 100\n" % (WIDTH, HEIGHT) + grey.tobytes()
    words = np.asarray(image).astype(">u2") * 200
    yield "words.ppm", (b"P6\n%d %d\n51000\n" % (WIDTH, HEIGHT) +
                        words.astype(">u2").tobytes())


def main():
    FOLDER.mkdir(exist_ok=True)
    lines, pixels = [], b""
    for files in (webp_files, gif_files, bmp_files, netpbm_files):
        for name, content in files():
            (FOLDER / name).write_bytes(content)
            image = Image.open(io.BytesIO(content)).convert("RGB")
            lines.append(f"{name} {image.width} {image.height}\n")
            pixels += image.tobytes()
    (FOLDER / "cases.txt").write_text("".join(lines))
    (FOLDER / "pixels.bin").write_bytes(pixels)


if __name__ == "__main__":
    main()
