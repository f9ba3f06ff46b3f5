"""Parts of an SVG picture."""

from base64 import b64encode
from xml.etree.ElementTree import Element, SubElement, tostring

from PIL import Image

from bench.pictures.grid import encoded


def svg_root(width: int, height: int) -> Element:
    """Return an empty SVG picture, `width` × `height` pixels, with the figures' font."""
    return Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "width": str(width),
            "height": str(height),
            "viewBox": f"0 0 {width} {height}",
            "font-family": "Helvetica, Arial, sans-serif",
        },
    )


def embed(root: Element, image: Image.Image, left: int, top: int, size: tuple[int, int], **style: str) -> None:
    """Add an image to an SVG picture. The image is stored as PNG, which every SVG reader can show.

    - `root`: the picture; `image`: the image.
    - `left`, `top`, `size` (width, height): place and size in pixels.
    - `style`: further attributes of the SVG element."""
    place = {"x": str(left), "y": str(top), "width": str(size[0]), "height": str(size[1])}
    data = b64encode(encoded(image)).decode()
    SubElement(root, "image", {**place, **style, "href": f"data:image/png;base64,{data}"})


def written(root: Element) -> bytes:
    """Serialise an SVG picture `root`: return the file's content."""
    content: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return content
