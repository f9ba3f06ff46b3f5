"""Image files, decoded within size limits."""

import warnings
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from bench.errors import DataError

FORMATS = {  # Pillow's name → suffixes of files
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
}
_PIXELS = 50_000_000  # a picture that declares more is refused before it is decoded
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")


def read_picture(path: Path, *, mode: str) -> Image.Image:
    """Read an image file, and return the image in `mode` ("RGB" or "L"); for an animation, its first frame. Raises
    `DataError` for other formats, damaged files, more than 8 bits per channel, or more than 50 million pixels."""
    try:
        # Our limit is below Pillow's, so our error replaces Pillow's warning.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            picture = Image.open(path, formats=tuple(FORMATS))
        with picture:
            if picture.width * picture.height > _PIXELS:
                raise DataError(f"{path}: {picture.width}×{picture.height} pixels; at most {_PIXELS} are read")
            if picture.mode not in _MODES:
                raise DataError(f"{path}: mode {picture.mode} is not read; save it with 8 bits a channel")
            return picture.convert(mode)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: truncated or no picture of a known format ({error})") from None
