"""JPEG files of which no more is decoded than is needed: once each, or at an eighth, a quarter or half of their size.

`Image.open(f).convert("RGB")` gives a picture that is decoded when its pixels are first needed. Sizes are those of the full
picture throughout, so code that computes with them is none the wiser.

`scaled_decode`: if the pixels are needed for resize(), of the whole or of a crop, then no more is decoded than the result
needs (DCT scaling, as Image.draft does): by flatout.feed's decoder where the filter is the bilinear one, else by libjpeg;
for anything else, in full. Pixels differ as those of two resampling filters do.

`keep_decoded`: what was decoded is kept (decoded.py), or where the whole picture was resized, the result alone.

What is wrong with a file is told when it always was: a file is decoded at once unless its end is there, or, with keep_decoded,
until it was decoded once without an error.
"""
import functools
import io

from . import decoded

_SCALES = (8, 4, 2)
_BILINEAR = 2  # Pillow's number of the filter
_END = b"\xff\xd9"  # of a JPEG file


def install(plugin, applied, scaled, store):
    """`scaled`: whether scaled_decode is asked for. `store`: decoded.Store of keep_decoded; None without it."""
    from PIL import Image

    decode = _feed_decoder() if scaled else None
    file_class = plugin.JpegImageFile
    load_file = file_class.load
    plain = Image.Image
    mode_name = "_mode" if isinstance(getattr(plain, "mode", None), property) else "mode"  # Pillow 10.1

    class LazyJpeg(Image.Image):
        """A picture, or a crop of it, that knows its file's bytes, or the picture that was decoded from them, and has pixels of its own
        from load() on."""

        def __init__(self, source, key, mode, full, box, info):
            super().__init__()
            self._source, self._key, self._full, self._box = source, key, full, box
            self._keeps = True
            setattr(self, mode_name, mode)
            self._size = (box[2] - box[0], box[3] - box[1])
            self.info = info

        def _part(self, box):
            return LazyJpeg(self._source, self._key, self.mode, self._full, box, dict(self.info))

        def load(self):
            picture = self._decoded()
            if self._box != (0, 0, *self._full):
                picture = picture.crop(self._box)
            elif picture is self._source:
                picture = plain.copy(picture)  # another one may be made of it
            self.__class__ = plain  # for good: from here on there is nothing lazy about it
            self.im = picture.im
            return self.load()

        def _decoded(self):
            """The whole picture."""
            picture = _kept(self._key, self.mode, self._full)
            if picture is None:
                picture = self._source
                if isinstance(picture, bytes):
                    picture = Image.open(io.BytesIO(picture))
                    load_file(picture)
                if self._keeps and self._key is not None:
                    store.put(self._key, picture.tobytes())
            return picture

        def __reduce_ex__(self, protocol):
            self.load()
            return self.__reduce_ex__(protocol)

        def convert(self, mode=None, *args, **kwargs):
            if mode == self.mode and not args and not kwargs:
                return self._part(self._box)
            return plain.convert(self, mode, *args, **kwargs)

        def copy(self):
            return self._part(self._box)

        def crop(self, box=None):
            if box is None:
                return self.copy()
            left, top, right, bottom = map(int, map(round, box))
            x, y = self._box[:2]
            whole = (left + x, top + y, right + x, bottom + y)
            if left < 0 or top < 0 or right > self._size[0] or bottom > self._size[1] or left >= right or top >= bottom:
                return plain.crop(self, box)
            return self._part(whole)

        def resize(self, size, resample=None, box=None, reducing_gap=None):
            part = box or (0, 0, *self._size)
            if self._key is None or self._size != self._full or tuple(part) != (0, 0, *self._full):
                return self._resized(size, resample, box, part, reducing_gap)
            # The whole: once more in the next epoch, other than most crops.
            key = decoded.key_of(self._key, ("resize", tuple(size), resample, reducing_gap, scaled))
            picture = _kept(key, self.mode, tuple(size))
            if picture is not None:
                picture.info = dict(self.info)
                return picture
            self._keeps = False
            picture = self._resized(size, resample, box, part, reducing_gap)
            store.put(key, picture.tobytes())
            return picture

        def _resized(self, size, resample, box, part, reducing_gap):
            if not scaled:
                return plain.resize(self, size, resample, box, reducing_gap)
            if not isinstance(self._source, bytes):  # decoded already
                return plain.resize(self, size, resample, box, reducing_gap)
            picture = self._by_feed(size, resample, part) if decode is not None else None
            if picture is not None:
                return picture
            picture = _shrunk(self, (part[2] - part[0]) / size[0], (part[3] - part[1]) / size[1])
            if picture is None:
                return plain.resize(self, size, resample, box, reducing_gap)
            applied("scaled_decode")
            fx, fy = picture.size[0] / self._full[0], picture.size[1] / self._full[1]
            x, y = self._box[:2]
            there = (max(0.0, (part[0] + x) * fx), max(0.0, (part[1] + y) * fy),
                     min(picture.size[0], (part[2] + x) * fx), min(picture.size[1], (part[3] + y) * fy))
            return picture.resize(size, resample, there, reducing_gap)

        def _by_feed(self, size, resample, part):
            """The part, at its size; None where flatout.feed does not do that."""
            left, top, right, bottom = part
            inside = 0 <= left < right <= self._size[0] and 0 <= top < bottom <= self._size[1]
            if resample != _BILINEAR or self.mode != "RGB" or not inside or any(edge != int(edge) for edge in part):
                return None
            width, height = map(int, size)
            whole = (int(left) + self._box[0], int(top) + self._box[1], int(right - left), int(bottom - top))
            try:
                pixels = decode(self._source, height, width, whole, "scaled")
            except Exception:  # a file that it does not read, or a size that it does not make: Pillow's word counts
                return None
            applied("scaled_decode")
            picture = Image.frombytes("RGB", (width, height), bytes(pixels))
            picture.info = dict(self.info)
            return picture

    def _kept(key, mode, size):
        """A picture of the store, or None."""
        pixels = store.get(key) if key is not None else None
        if pixels is None:
            return None
        applied("keep_decoded")
        return Image.frombytes(mode, size, pixels)

    def _shrunk(lazy, horizontal, vertical):
        """The whole picture, decoded at a scale that leaves the part at least as large as its result."""
        scale = next((s for s in _SCALES if s <= min(horizontal, vertical)), 1)
        if scale == 1:
            return None
        picture = Image.open(io.BytesIO(lazy._source))
        width, height = lazy._full
        picture.draft(lazy.mode, (-(-width // scale), -(-height // scale)))
        picture.load()
        return picture if picture.mode == lazy.mode else None

    def lazy(picture):
        """`picture` with pixels of its own later; None where that would change something."""
        if (type(picture) is not file_class or picture.mode not in ("RGB", "L") or not picture.tile
                or getattr(picture, "fp", None) is None or picture.decoderconfig):
            return None
        key = _key(picture)
        picture.fp.seek(0)
        source = picture.fp.read()
        if key is None and not source.rstrip(b"\0").endswith(_END):
            return None
        box, info = (0, 0, *picture.size), dict(picture.info)
        if key is not None and not _is_fine(key):
            load_file(picture)
            store.put(decoded.key_of(key, "fine"), b"1")
            source = plain.copy(picture)
        return LazyJpeg(source, key, picture.mode, picture.size, box, info)

    def _is_fine(key):
        return store.get(decoded.key_of(key, "fine")) is not None or store.get(key) is not None

    def _key(picture):
        if store is None:
            return None
        return decoded.key_of_stream(picture.fp, (picture.mode, picture.size, picture.tile, picture.decoderconfig))

    def load(self):
        key = _key(self) if self.tile and type(self) is file_class else None
        if key is None:
            return load_file(self)
        picture = _kept(key, self.mode, self.size)
        if picture is None:
            result = load_file(self)
            store.put(key, self.tobytes())
            return result
        # What ImageFile.load() leaves behind.
        self.im = picture.im
        self.tile = []
        self.readonly = 0
        self.load_end()
        if getattr(self, "_exclusive_fp", False) and getattr(self, "_close_exclusive_fp_after_loading", True):
            self.fp.close()
        self.fp = None
        return plain.load(self)

    if store is not None:
        file_class.load = functools.wraps(load_file)(load)

    for name in ("convert", "resize"):
        original = getattr(file_class, name)

        def hook(self, *args, _name=name, _original=original, **kwargs):
            same = _name == "resize" or (len(args) == 1 and not kwargs and args[0] == self.mode)
            found = lazy(self) if same else None
            if found is None:
                return _original(self, *args, **kwargs)
            return found.resize(*args, **kwargs) if _name == "resize" else found

        setattr(file_class, name, functools.wraps(original)(hook))


def _feed_decoder():
    """flatout.feed.decode; None where its library is not installed."""
    from . import package

    try:
        feed = package("feed")
        feed._library.library()
    except (ImportError, OSError, AttributeError):
        return None
    return feed.decode
