"""Damaged, odd and hostile picture files, made here, each with the outcome that `flatout feed verify` has to tell.

Run as a program, it writes them into a folder and prints name and outcome: nasty.py FOLDER
"""

import io
import pathlib
import random
import struct
import sys
import tarfile
import zlib
from typing import Dict, Tuple

import numpy as np
from PIL import Image

EOI = b"\xff\xd9"


def picture(width=160, height=120, mode="RGB"):
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(width * 1000 + height).normal(0, 6, (height, width))
    planes = [120 + 60 * np.sin(x / (9 + 3 * c)) + 50 * np.cos(y / (7 + 2 * c)) + noise for c in range(3)]
    return Image.fromarray(np.stack(planes, -1).clip(0, 255).astype(np.uint8)).convert(mode)


def saved(form, image=None, **options):
    out = io.BytesIO()
    (image or picture()).save(out, form, **options)
    return out.getvalue()


def segments(jpeg):
    """(marker, offset, length with marker) of each segment up to the scan's header."""
    at = 2
    while at < len(jpeg):
        marker = jpeg[at + 1]
        length = 2 + struct.unpack(">H", jpeg[at + 2:at + 4])[0]
        yield marker, at, length
        at += length
        if marker == 0xDA:
            return


def find(jpeg, *markers):
    return next((at, length) for marker, at, length in segments(jpeg) if marker in markers)


def without(jpeg, marker):
    for found, at, length in reversed(list(segments(jpeg))):
        if found == marker:
            jpeg = jpeg[:at] + jpeg[at + length:]
    return jpeg


def scan_start(jpeg):
    at, length = find(jpeg, 0xDA)
    return at + length


def patched(data, at, new):
    return data[:at] + new + data[at + len(new):]


def with_size(jpeg, width=None, height=None):
    at, _ = find(jpeg, 0xC0, 0xC1, 0xC2)
    if height is not None:
        jpeg = patched(jpeg, at + 5, struct.pack(">H", height))
    if width is not None:
        jpeg = patched(jpeg, at + 7, struct.pack(">H", width))
    return jpeg


def with_hole(jpeg, part, size):
    """Bytes of the scan lost, without a marker made or broken."""
    start = scan_start(jpeg)
    at = start + int((len(jpeg) - start) * part)
    return jpeg[:at] + jpeg[at + size:]


def with_noise(jpeg, part, count, seed):
    """Bytes of the scan replaced; none becomes or was a marker."""
    data = bytearray(jpeg)
    start = scan_start(jpeg)
    first = start + int((len(jpeg) - start) * part)
    source = random.Random(seed)
    for at in range(first, first + count):
        if 0xFF not in data[at - 1:at + 2]:
            data[at] = source.randrange(255)
    return bytes(data)


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width, height, rows, depth=8, colour=2, extra=b""):
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)) + extra +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def many_scans(count):
    """A progressive JPEG whose first refinement scan is there `count` times more."""
    data = saved("JPEG", picture(16, 16, "L"), progressive=True)
    at = data.rindex(b"\xff\xda")
    return data[:at] + data[at:-2] * count + EOI


def cases() -> Dict[str, Tuple[bytes, str]]:
    base = saved("JPEG", quality=90)
    full = saved("JPEG", quality=90, subsampling=0)
    progressive = saved("JPEG", quality=90, progressive=True)
    restarts = saved("JPEG", quality=90, restart_marker_blocks=4)
    grey = saved("JPEG", picture(mode="L"))
    flat_png = png(50, 40, (b"\0" + bytes(range(150))) * 40)
    some_png = saved("PNG")
    some_webp = saved("WEBP", lossless=True)
    lossy_webp = saved("WEBP", quality=80)
    scan = scan_start(base)
    out: Dict[str, Tuple[bytes, str]] = {}

    def add(outcome, **files):
        for name, data in files.items():
            suffix = {b"\x89PN": ".png", b"RIF": ".webp"}.get(data[:3], ".jpg")
            out[name + suffix] = (data, outcome)

    add("ok", base=base, full=full, progressive=progressive, restarts=restarts, grey=grey,
        half=saved("JPEG", subsampling=1), cmyk=saved("JPEG", picture(mode="CMYK")), optimized=saved("JPEG", optimize=True),
        one_pixel=saved("JPEG", picture(1, 1)), column=saved("JPEG", picture(1, 3000)), row=saved("JPEG", picture(3000, 1)),
        odd=saved("JPEG", picture(17, 9)), trailing_zeros=base + bytes(100), trailing_text=base + b"appended by some tool\n" * 20,
        two_pictures=base + full, exif=saved("JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"),
        comment=base[:2] + b"\xff\xfe\0\x07hello" + base[2:], padded_markers=base[:2] + b"\xff" * 5 + base[2:],
        icc=saved("JPEG", icc_profile=b"p" * 3000), quality_1=saved("JPEG", quality=1), quality_100=saved("JPEG", quality=100))
    add("ok", png=some_png, flat_png=flat_png, png_grey=saved("PNG", picture(mode="L")), png_palette=saved("PNG", picture(mode="P")),
        png_one_bit=saved("PNG", picture(mode="1")), png_alpha=saved("PNG", picture(mode="RGBA")),
        png16=png(20, 10, (b"\0" + bytes(range(120))) * 10, depth=16), png_one_pixel=saved("PNG", picture(1, 1)),
        webp=some_webp, webp_lossy=lossy_webp, webp_alpha=saved("WEBP", picture(mode="RGBA"), lossless=True))

    add("truncated", cut_20=base[:len(base) // 5], cut_50=base[:len(base) // 2], cut_90=base[:len(base) * 9 // 10], cut_last=base[:-1],
        no_end=base[:-2], cut_full=full[:len(full) * 2 // 3], cut_progressive_30=progressive[:len(progressive) * 3 // 10],
        cut_progressive_95=progressive[:len(progressive) * 95 // 100], cut_grey=grey[:len(grey) // 2], cut_at_scan=base[:scan],
        cut_in_header=base[:100], only_start=b"\xff\xd8", start_and_marker=base[:4], cut_restarts=restarts[:len(restarts) // 2],
        too_tall=with_size(base, height=2000), a_row_too_tall=with_size(base, height=120 + 32), cut_then_end=base[:len(base) // 2].rstrip(b"\xff") + EOI,
        cut_in_thumbnail=saved("JPEG", exif=b"Exif\0\0" + base)[:len(base) // 2])
    add("truncated", png_cut_30=some_png[:len(some_png) * 3 // 10], png_cut_90=some_png[:len(some_png) * 9 // 10], png_cut_header=some_png[:20],
        png_only_header=some_png[:33], webp_cut=some_webp[:len(some_webp) // 2], webp_lossy_cut=lossy_webp[:len(lossy_webp) * 3 // 4],
        webp_cut_header=some_webp[:14])

    add("corrupt", noise_10=with_noise(base, 0.1, 40, 1), noise_50=with_noise(base, 0.5, 60, 2), noise_full=with_noise(full, 0.3, 200, 3),
        noise_progressive=with_noise(progressive, 0.3, 200, 4), noise_grey=with_noise(grey, 0.3, 100, 5),
        noise_restarts=with_noise(restarts, 0.4, 60, 6), hole=with_hole(restarts, 0.4, 300), no_quantisation=without(base, 0xDB),
        zero_width=with_size(base, width=0), zero_height=with_size(base, height=0), start_twice=base[:2] + base,
        bad_quantisation_number=patched(base, find(base, 0xDB)[0] + 4, b"\x0f"),
        bad_table_number=patched(base, find(base, 0xDA)[0] + 6, b"\x77"),
        bad_component=patched(base, find(base, 0xDA)[0] + 5, b"\x63"), bad_sampling=patched(base, find(base, 0xC0)[0] + 11, b"\x00"),
        bad_code_lengths=patched(base, find(base, 0xC4)[0] + 5, b"\xff" * 16), short_segment=patched(base, find(base, 0xC0)[0] + 2, b"\0\x03"),
        not_a_marker=b"\xff\xd8\xff\x00" + base[4:], no_scan=base[:find(base, 0xDA)[0]] + EOI,
        frame_twice=base[:find(base, 0xC4)[0]] + base[find(base, 0xC0)[0]:find(base, 0xC4)[0]] + base[find(base, 0xC4)[0]:],
        scan_first=base[:2] + base[find(base, 0xDA)[0]:], garbage_between=base[:20] + b"garbage" * 3 + base[20:])
    add("corrupt", png_bad_crc=patched(flat_png, 29, b"\0\0\0\0"), png_bad_data=patched(some_png, len(some_png) // 2, b"\0" * 40),
        png_zero_width=png(0, 10, b""), png_bad_filter=png(10, 10, (b"\x09" + bytes(30)) * 10), png_bad_depth=png(10, 10, (b"\0" + bytes(30)) * 10, depth=5),
        png_too_few_rows=png(50, 40, (b"\0" + bytes(150)) * 20), png_no_data=some_png[:33] + chunk(b"IEND", b""),
        png_unknown_critical=png(10, 10, (b"\0" + bytes(30)) * 10, extra=chunk(b"ABCD", b"?")),
        png_palette_missing=png(10, 10, (b"\0" + bytes(10)) * 10, colour=3),
        webp_bad_data=patched(some_webp, 40, bytes(random.Random(7).randbytes(len(some_webp) // 2))))

    out["empty.jpg"] = (b"", "empty")
    out["empty.png"] = (b"", "empty")
    add("not_an_image", text=b"<html><body>404 not found</body></html>", zeros=bytes(5000), noise=random.Random(8).randbytes(5000),
        shifted=b"abcdef" + base, one_byte=b"\xff", newline=b"\n", zip=b"PK\x03\x04" + bytes(100), pdf=b"%PDF-1.4\n" + bytes(100),
        inverted=bytes(b ^ 0xFF for b in base))
    tall = patched(base, find(base, 0xC0)[0] + 4, b"\x0c")
    add("unsupported", gif=saved("GIF"), bmp=saved("BMP"), tiff=saved("TIFF"), ppm=saved("PPM"), twelve_bit=tall,
        lossless=patched(base, find(base, 0xC0)[0] + 1, b"\xc3"), hierarchical=patched(base, find(base, 0xC0)[0] + 1, b"\xc5"),
        webp_animated=saved("WEBP", save_all=True, append_images=[picture().rotate(90)], duration=100),
        gif_named_jpeg=saved("GIF", save_all=True, append_images=[picture()]), icon=saved("ICO", picture(32, 32)),
        avif=b"\0\0\0\x20ftypavif" + bytes(100))
    add("too_large", bomb=with_size(base, 65500, 65500), bomb_grey=with_size(grey, 65500, 40000),
        bomb_progressive=with_size(progressive, 20000, 8000), png_bomb=png(60000, 60000, b""), png_wide_bomb=png(2**31 - 1, 1, b""),
        scans=many_scans(3000))
    return out


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """One record of a TFRecord file."""
    def masked(part):
        crc = crc32c(part)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def field(number: int, data: bytes) -> bytes:
    """A field of protobuf's wire format with a length."""
    out, n = bytes([number << 3 | 2]), len(data)
    while n >= 0x80:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n]) + data


def example(picture=None, label=None) -> bytes:
    """A tf.train.Example; labels below 128."""
    features = b""
    if picture is not None:
        features += field(1, field(1, b"image/encoded") + field(2, field(1, field(1, picture))))
    if label is not None:
        features += field(1, field(1, b"image/class/label") + field(2, field(3, b"\x0a\x01" + bytes([label]))))
    return field(1, features)


def tar(members, form=tarfile.USTAR_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def archives() -> Dict[str, Tuple[bytes, str, int]]:
    """Archives, each with the outcome and the number of samples that verify has to tell."""
    good, small = saved("JPEG", picture(40, 30)), saved("JPEG", picture(20, 20))
    two = {"a.jpg": good, "a.cls": b"1", "b.jpg": small, "b.cls": b"2"}
    whole = tar(two)
    second = whole.index(b"b.jpg")
    records = record(example(good, 1)) + record(example(small, 2))
    first = len(record(example(good, 1)))
    return {
        "whole.tar": (whole, "ok", 2), "pax.tar": (tar(two, tarfile.PAX_FORMAT), "ok", 2), "gnu.tar": (tar(two, tarfile.GNU_FORMAT), "ok", 2),
        "long.tar": (tar({"n" * 300 + ".jpg": good}, tarfile.PAX_FORMAT), "ok", 1), "cut.tar": (whole[:second + 700], "truncated", 2),
        "cut_header.tar": (whole[:second + 100], "truncated", 1), "no_end.tar": (whole[:whole.rindex(b"b.cls") + 1024], "truncated", 2),
        "garbled.tar": (patched(whole, second + 1, b"?"), "corrupt", 1), "text.tar": (b"no archive" * 100, "corrupt", 0), "empty.tar": (b"", "empty", 0),
        "no_label.tar": (tar({**two, "c.jpg": good}), "missing_field", 3), "no_picture.tar": (tar({**two, "c.cls": b"3"}), "missing_field", 3),
        "bad_picture.tar": (tar({**two, "c.jpg": b"no picture", "c.cls": b"3"}), "not_an_image", 3),
        "empty_picture.tar": (tar({**two, "c.jpg": b"", "c.cls": b"3"}), "empty", 3),
        "whole.tfrecord": (records, "ok", 2), "train-00000-of-00001": (records, "ok", 2), "cut.tfrecord": (records[:-100], "truncated", 2),
        "cut_header.tfrecord": (records[:first + 5], "truncated", 1), "data.tfrecord": (patched(records, first // 2, b"\0\0\0\0"), "corrupt", 2),
        "length.tfrecord": (patched(records, first, b"\xff"), "corrupt", 1), "no_example.tfrecord": (record(b"\xff\xff\xff"), "corrupt", 1),
        "no_picture.tfrecord": (record(example(None, 1)), "missing_field", 1), "no_label.tfrecord": (record(example(good)), "missing_field", 1),
        "bad_picture.tfrecord": (record(example(good[:-100], 1)), "truncated", 1), "empty.tfrecord": (b"", "empty", 0),
        "packed.tfrecord": (b"\x1f\x8b\x08\0" + bytes(60), "unsupported", 0),
        "huge.tfrecord": (struct.pack("<Q", 1 << 62) + record(b"")[8:], "corrupt", 0), "no.fpack": (b"FLTPACK1" + bytes(100), "corrupt", 0),
    }


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, (data, outcome, *_) in {**cases(), **archives()}.items():
        (folder / name).write_bytes(data)
        print(name, outcome)


if __name__ == "__main__":
    main()
