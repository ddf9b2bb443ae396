"""Image decoding and resizing in TensorFlow graphs, shared by training, evaluation and the exported model.

All decode JPEG with the fast integer DCT and smooth upsampling, TensorFlow's defaults in its own builds. `decode_jpeg`
does the same without TensorFlow: both use libjpeg-turbo, and their pixels are equal. It resizes with SIMD instructions
where cykooz-resizer is installed, in a quarter of TensorFlow's time; values then differ by at most one of 255 levels.

The graphs are traced without AutoGraph, which takes a tenth of a second per function and is needed only for Python
conditions and loops on tensors. The functions use `tf.cond` and `tf.while_loop` instead, and Keras does not apply
AutoGraph to a network's layers.

Images in a data set are upright. Those that the exported model receives may have an EXIF orientation, which it applies
to JPEG files; `slipway predict` and the prediction server convert PNG files that have one, and other formats.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import simplejpeg
import tensorflow as tf
from numpy.typing import NDArray

try:
    import cykooz_resizer as simd
except ImportError:  # it has no wheel for Linux on ARM
    simd = None

from slipway.core.images import EXIF, EXIF_ORIENTATION, EXIF_SHORT
from slipway.core.manifest import Manifest, ResizeMode

_JPEG = b"\xff\xd8\xff"
# Where EXIF data begin and end at the latest: they come first, in a segment of up to 64 KiB. They follow a marker and
# the segment's length, which counts itself.
_HEAD_BYTES = 1 << 17
_EXIF_MARKER = b"\xff\xe1"
_LENGTH_BYTES = 2
_ENTRY_BYTES = 12
_MARKER = 0xFF
# Whether rows and columns are in reverse order, by EXIF orientation (0 is none), after those from 5 on were transposed.
_MIRRORED = [[False, False], *2 * [[False, False], [False, True], [True, True], [True, False]]]
_TRANSPOSED = 5
# Second bytes of JPEG markers: of those that start a lossy frame (TensorFlow refuses lossless ones), and of those that
# may precede it: tables, restart interval, comment and application data.
_LOSSY_FRAMES = b"\xc0\xc1\xc2"
_BEFORE_FRAME = b"\xc4\xdb\xdd\xfe" + bytes(range(0xE0, 0xF0))
# Maximum number of images for which `decode_prepared` traces an operation each.
_UNROLLED = 16

# Used like tf.function, as a decorator or a call.
traced = functools.partial(tf.function, autograph=False)


def as_it_is(function: Callable[..., object]) -> Callable[..., object]:
    """Wrap a function that tf.data traces, so that AutoGraph does not convert it."""
    return tf.autograph.experimental.do_not_convert(function)


def decode_images(encoded: tf.Tensor, manifest: Manifest, *, upright: bool = False) -> tf.Tensor:
    """Decode PNG or JPEG images, string [n], to pixels uint8 [n, height, width, channels].

    Images are resized to `manifest.image_size` (bilinear, antialiased, see `_resize`) and converted to
    `manifest.channels` as needed. The EXIF orientation of JPEG images is applied, unless all are known to be `upright`.
    """
    height, width, channels = manifest.image_shape
    mode = manifest.resize_mode

    def decode(image: tf.Tensor) -> tf.Tensor:
        pixels = _decode(image, channels, upright=upright)
        fits = tf.reduce_all(tf.equal(tf.shape(pixels)[:2], [height, width]))
        pixels = tf.cond(fits, lambda: pixels, lambda: _resize(pixels, height, width, mode))
        return tf.ensure_shape(pixels, [height, width, channels])

    return tf.map_fn(decode, encoded, fn_output_signature=tf.TensorSpec([height, width, channels], tf.uint8))


def decode_prepared(encoded: tf.Tensor, manifest: Manifest) -> tf.Tensor:
    """Decode images from the data set's shards, string [n] with static n; same result as `decode_images`.

    If no image needs resizing, this is one operation per image in a loop over up to `_UNROLLED` images at a time. A
    loop over single images takes a fifth longer for small images, and no loop three times as long to trace.
    """
    if manifest.resize:
        return decode_images(encoded, manifest, upright=True)
    count = encoded.shape[0]
    together = max(size for size in range(1, _UNROLLED + 1) if count % size == 0)
    shape = [together, *manifest.image_shape]

    def decode(images: tf.Tensor) -> tf.Tensor:
        decoded = [_decode_prepared(image, manifest.channels) for image in tf.unstack(images)]
        return tf.ensure_shape(tf.stack(decoded), shape)

    rows = tf.reshape(encoded, [count // together, together])
    pixels = tf.map_fn(decode, rows, fn_output_signature=tf.TensorSpec(shape, tf.uint8))
    return tf.reshape(pixels, [count, *manifest.image_shape])


def decodes_jpeg(manifest: Manifest) -> bool:
    """Return whether `decode_jpeg` decodes the JPEG images of a data set."""
    return "jpeg" in manifest.encodings and (
        not manifest.resize or (simd is not None and manifest.resize_mode != "pad")
    )


def decode_stream(encoded: tf.Tensor, manifest: Manifest) -> tf.Tensor:
    """Decode images from the data set's shards, string [n] with static n, with `decode_jpeg` where it can.

    For tf.data only: the graph calls Python.
    """
    if not decodes_jpeg(manifest):
        return decode_prepared(encoded, manifest)
    shape = [encoded.shape[0], *manifest.image_shape]

    def jpegs(files: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        pixels = np.empty(shape, np.uint8)
        decoded = [decode_jpeg(file, into, manifest.resize_mode) for file, into in zip(files, pixels, strict=True)]
        return pixels, np.array(decoded)

    pixels, decoded = tf.numpy_function(jpegs, [encoded], (tf.uint8, tf.bool), stateful=False)
    pixels, decoded = tf.ensure_shape(pixels, shape), tf.ensure_shape(decoded, shape[:1])

    def others() -> tf.Tensor:
        left = tf.where(~decoded)
        rest = decode_images(tf.gather_nd(encoded, left), manifest, upright=True)
        return tf.tensor_scatter_nd_update(pixels, left, rest)

    return tf.cond(tf.reduce_all(decoded), lambda: pixels, others)


def decode_jpeg(image: bytes, pixels: NDArray[np.uint8], mode: ResizeMode | None = None) -> bool:
    """Decode a JPEG image into `pixels`, [height, width, channels], as `decode_prepared` does.

    With a mode, an image of another size is resized as `_resize` does, but with `pad`.

    Return False, with undefined pixels, for other formats and sizes, and where TensorFlow refuses the image or decodes
    it differently: damaged images, and colors other than YCbCr and grayscale.
    """
    height, width, channels = pixels.shape
    colors = "RGB" if channels == 3 else "GRAY"
    try:
        if not image.startswith(_JPEG) or not _is_lossy(image):
            return False
        *size, stored_colors, _ = simplejpeg.decode_jpeg_header(image)
        if stored_colors not in ("YCbCr", "Gray"):
            return False
        if size == [height, width]:
            simplejpeg.decode_jpeg(image, colors, fastdct=True, buffer=pixels)
        elif simd is None or mode in (None, "pad"):
            return False
        else:
            scale = _scale(size, (height, width))
            height, width = (-(-length // scale) for length in size)
            part = simplejpeg.decode_jpeg(image, colors, fastdct=True, min_height=height, min_width=width)
            _resize_by_simd(part, pixels, mode, (size[0] / scale, size[1] / scale))
    except (ValueError, IndexError):
        return False
    return True


def _scale(size: Sequence[int], target: Sequence[int]) -> int:
    """Return by how much libjpeg-turbo divides the height and width of an image that is resized to `target`.

    At least twice the target is left. The resized pixels then differ from those of the whole image by less than one
    level in the mean. Halves, quarters and eighths are decoded with SIMD instructions, other parts are not.
    """
    fits = min(of // (2 * to) for of, to in zip(size, target, strict=True))
    return max(scale for scale in (1, 2, 4, 8) if scale <= max(1, fits))


def _resize_by_simd(
    pixels: NDArray[np.uint8], resized: NDArray[np.uint8], mode: ResizeMode, part: tuple[float, float] | None = None
) -> None:
    """Resize pixels [any, any, channels] into `resized`, [height, width, channels]; see `_resize`.

    `part` is the height and width of the image in them, which may end within the last row and column.
    """
    (*whole, channels), (*fitted, _) = pixels.shape, resized.shape
    size = part or (float(whole[0]), float(whole[1]))
    kind = simd.PixelType.U8x3 if channels == 3 else simd.PixelType.U8
    source = simd.ImageData(whole[1], whole[0], kind, pixels.tobytes())
    target = simd.ImageData(fitted[1], fitted[0], kind)
    options = simd.ResizeOptions(resize_alg=simd.ResizeAlg.convolution(simd.FilterType.bilinear))
    (top, left), (height, width) = (0.0, 0.0), size
    if mode == "crop":
        factors = np.array(fitted, np.float32) / np.array(size, np.float32)
        factor = factors.max()
        # As there, in whole pixels of the result.
        starts = np.round((factor - factors) * np.array(size, np.float32) / 2) / factor
        (top, left), (height, width) = starts, np.minimum(np.array(fitted) / factor, size - starts)
    options.crop_box = simd.CropBox(*(float(value) for value in (left, top, width, height)))
    simd.Resizer().resize(source, target, options)
    resized[...] = np.frombuffer(target.get_buffer(), np.uint8).reshape(resized.shape)


def _is_lossy(image: bytes) -> bool:
    """Return whether the first frame of a JPEG image is lossy; False if other bytes than usual precede it.

    Raises:
        IndexError: The image ends before it.
    """
    start = 2
    while image[start] == _MARKER and image[start + 1] in _BEFORE_FRAME:
        start += 2 + (image[start + 2] << 8) + image[start + 3]
    return image[start] == _MARKER and image[start + 1] in _LOSSY_FRAMES


def _decode(image: tf.Tensor, channels: int, *, upright: bool) -> tf.Tensor:
    def as_jpeg() -> tf.Tensor:
        pixels = _decode_prepared(image, channels)
        if upright:
            return pixels
        orientation = _orientation(image)
        return tf.cond(orientation == 1, lambda: pixels, lambda: _turned(pixels, orientation))

    def as_other() -> tf.Tensor:
        return tf.io.decode_image(image, channels=channels, expand_animations=False)

    pixels = tf.cond(tf.strings.substr(image, 0, len(_JPEG)) == _JPEG, as_jpeg, as_other)
    pixels.set_shape([None, None, channels])
    return pixels


def _decode_prepared(image: tf.Tensor, channels: int) -> tf.Tensor:
    """Decode a PNG or JPEG file; the operation decodes both."""
    return tf.io.decode_jpeg(image, channels=channels, dct_method="INTEGER_FAST", fancy_upscaling=True)


def _orientation(image: tf.Tensor) -> tf.Tensor:
    """Return the EXIF orientation of a JPEG file, int32 from 1 to 8; see `slipway.core.images.exif_orientation`."""
    head = tf.strings.substr(image, 0, _HEAD_BYTES)
    parts = tf.raw_ops.StringSplitV2(input=head[tf.newaxis], sep=EXIF, maxsplit=1).values
    before = len(_EXIF_MARKER) + _LENGTH_BYTES

    def stored() -> tf.Tensor:
        length = tf.cast(
            tf.io.decode_raw(tf.strings.substr(parts[0], -_LENGTH_BYTES, _LENGTH_BYTES), tf.uint8), tf.int32
        )
        size = length[0] * 256 + length[1] - _LENGTH_BYTES - len(EXIF)
        exif = tf.io.decode_raw(tf.strings.substr(parts[1], 0, tf.maximum(size, 0)), tf.uint8)
        return _exif_orientation(tf.cast(exif, tf.int32))

    is_exif = tf.logical_and(tf.shape(parts)[0] == 2, tf.strings.length(parts[0]) >= before)
    marker = tf.strings.substr(parts[0], -tf.minimum(before, tf.strings.length(parts[0])), len(_EXIF_MARKER))
    return tf.cond(tf.logical_and(is_exif, marker == _EXIF_MARKER), stored, lambda: tf.constant(1))


def _exif_orientation(exif: tf.Tensor) -> tf.Tensor:
    """Return the orientation in EXIF data, int32 [bytes]: that of the first entry with its tag and type, else 1."""
    size = tf.shape(exif)[0]
    padded = tf.pad(exif, [[0, 2 * _ENTRY_BYTES]])
    head = tf.reshape(padded[: 2 * 4], [4, 2])
    is_little, is_big = tf.unstack(tf.reduce_all(head[0] == [list(b"II"), list(b"MM")], axis=1))
    weights = tf.where(is_little, [1, 256], [256, 1])

    def numbers(pairs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(pairs * weights, axis=-1)

    first, second = tf.unstack(numbers(head[2:]))
    lower, upper = tf.where(is_little, first, second), tf.where(is_little, second, first)
    # An offset of 64 KiB or more is outside of the segment.
    is_known = tf.logical_and(tf.logical_or(is_little, is_big), upper == 0)
    start = tf.where(is_known, tf.minimum(lower, size), size) + 2
    # The last entry may lack two unused bytes.
    count = tf.minimum(numbers(padded[start - 2 : start]), (size + 2 - start) // _ENTRY_BYTES)
    entries = tf.reshape(padded[start : start + count * _ENTRY_BYTES], [-1, _ENTRY_BYTES // 2, 2])
    tags, kinds, _, _, values, _ = tf.unstack(numbers(entries), axis=1)
    orientations = tf.boolean_mask(values, tf.logical_and(tags == EXIF_ORIENTATION, kinds == EXIF_SHORT))
    value = tf.concat([orientations, [1]], axis=0)[0]
    return tf.where(tf.logical_and(value >= 1, value < len(_MIRRORED)), value, 1)


def _turned(pixels: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Return pixels [height, width, channels] upright that are stored with an EXIF orientation."""
    pixels = tf.transpose(pixels, tf.where(orientation >= _TRANSPOSED, [1, 0, 2], [0, 1, 2]))
    return tf.reverse(pixels, tf.boolean_mask([0, 1], tf.gather(_MIRRORED, orientation)))


def _resize(pixels: tf.Tensor, height: int, width: int, mode: ResizeMode) -> tf.Tensor:
    """Resize pixels uint8 [any, any, channels], equal to `tf.image.resize(…, antialias=True)` rounded.

    The mode `stretch` changes the aspect ratio. The others keep it and center the image: `crop` fills the height and
    width and cuts off what exceeds them, `pad` stays within them and leaves black bars.

    The operation is fast on long rows and slow on short ones, so rows are resized as [height, 1, width * channels], and
    columns the same way after transposing. The result is the same in half the time.
    """
    size, channels = tf.shape(pixels), pixels.shape[2]
    by_height, by_width = height / tf.cast(size[0], tf.float32), width / tf.cast(size[1], tf.float32)
    factor = {"stretch": None, "crop": tf.maximum(by_height, by_width), "pad": tf.minimum(by_height, by_width)}[mode]
    rows = _resize_first(tf.reshape(pixels, [size[0], size[1] * channels]), height, factor)
    columns = tf.transpose(tf.reshape(rows, [height, size[1], channels]), [1, 0, 2])
    resized = _resize_first(tf.reshape(columns, [size[1], height * channels]), width, factor)
    # No clipping needed: an average of pixels stays within their range.
    rounded = tf.cast(tf.round(resized), tf.uint8)
    return tf.transpose(tf.reshape(rounded, [width, height, channels]), [1, 0, 2])


def _resize_first(values: tf.Tensor, length: int, factor: tf.Tensor | None) -> tf.Tensor:
    """Resize [any, n] to float32 [length, n], bilinear with antialiasing.

    With a factor, scale by it instead and center the result, in whole pixels: cut off both ends, or add zeros.
    """
    size = tf.cast(tf.shape(values)[0], tf.float32)
    fitting = length / size
    factor = fitting if factor is None else factor
    resized = tf.raw_ops.ScaleAndTranslate(
        images=values[tf.newaxis, :, tf.newaxis, :],
        size=[length, 1],
        scale=tf.stack([factor, 1.0]),
        translation=tf.stack([tf.round((fitting - factor) * size / 2), 0.0]),
        kernel_type="triangle",
        antialias=True,
    )
    return resized[0, :, 0, :]


def scale(pixels: tf.Tensor) -> tf.Tensor:
    """Convert uint8 pixels to float32 in [0, 1], the model's input."""
    return tf.cast(pixels, tf.float32) * (1.0 / 255.0)
