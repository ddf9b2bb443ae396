"""The statistics page of a prepared set: one HTML file that needs nothing beside it."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from components.prepare_data.records import example_parts, read_records
from components.prepare_data.sources.source import Ignored, readable
from components.prepare_data.tally import Tally
from trainer.manifest import Manifest

FILE_NAME = "statistics.html"
SAMPLES = 32
MOST_RECORDS_READ = 512
LARGEST_INLINE = 8192
THUMBNAIL = 96


@dataclass(frozen=True)
class Sample:
    """One image on the page: its bytes as a data: URI, its class, its key."""

    uri: str
    label: str
    key: str


def write_statistics(folder: Path, manifest: Manifest, tally: Tally, ignored: Ignored) -> None:
    """Write `statistics.html` beside the shards: class balance, image sizes, samples, what was left out."""
    import jinja2

    template = jinja2.Template(
        Path(__file__).with_suffix(".html").read_text(encoding="utf-8"), autoescape=True, trim_blocks=True
    )
    page = template.render(
        manifest=manifest,
        tally=tally,
        ignored=ignored,
        largest_class=max(max(split.classes.values()) for split in manifest.splits.values()),
        samples=list(samples(folder, manifest)),
    )
    (folder / FILE_NAME).write_text(page, encoding="utf-8")


def samples(folder: Path, manifest: Manifest) -> Iterator[Sample]:
    """Some images from the beginning of the first training shard, as evenly from the classes as that has them."""
    most = -(-SAMPLES // len(manifest.classes))
    found: dict[int, list[Sample]] = {}
    with (folder / manifest.splits["train"].shards[0].file).open("rb") as file:
        for number, message in enumerate(read_records(file)):
            if number == MOST_RECORDS_READ or sum(map(len, found.values())) == SAMPLES:
                break
            image, key, label = example_parts(message)
            if len(of_class := found.setdefault(label, [])) < most:
                of_class.append(Sample(_inline(image), manifest.classes[label], readable(key)))
    for label in sorted(found):
        yield from found[label]


def _inline(image: bytes) -> str:
    """The image as a data: URI, made smaller where it is large."""
    encoding = "png" if image.startswith(b"\x89PNG") else "jpeg"
    if len(image) > LARGEST_INLINE:
        from PIL import Image

        with Image.open(io.BytesIO(image)) as opened:
            opened.draft("RGB", (THUMBNAIL, THUMBNAIL))
            small = opened.convert("RGB")
            small.thumbnail((THUMBNAIL, THUMBNAIL))
            buffer = io.BytesIO()
            small.save(buffer, "JPEG", quality=80)
        image, encoding = buffer.getvalue(), "jpeg"
    return f"data:image/{encoding};base64,{base64.b64encode(image).decode()}"
