"""What `slipway init --images` says about a folder of images, and the configuration that it writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from slipway.components.prepare_data.examples import readable
from slipway.components.prepare_data.settings import SplitFractions
from slipway.components.prepare_data.validation.tally import usual_side
from slipway.pipelines.cli.scanned import aligned, balance, counted, fitting_batch, imbalance, lines, quoted

if TYPE_CHECKING:
    from slipway.components.prepare_data.scan import Scan
    from slipway.core.values import JsonObject

MAX_NAMED = 3
# Of fewer groups of a class, the splits would be far from their fractions.
MIN_GROUPS = 10
BATCH = 32
OWN = [("builder", "model:build", "the function build in model.py")]
BACKBONE = "MobileNetV3Small"
WEIGHTS = f"{BACKBONE}.weights.h5"
PRETRAINED = [
    ("builder", "slipway.trainer.models.pretrained:build", ""),
    ("arguments", f"{{backbone: {BACKBONE}}}", "or another network of keras.applications"),
    ("weights", f"{{file: {WEIGHTS}}}", f"from python -m slipway.trainer.models.pretrained {BACKBONE}"),
]
# Training ends after so many epochs without a lower validation loss, and not before so many batches: of few images, an
# epoch has few, and the validation loss means nothing until the averages of BatchNormalization have settled.
PATIENCE, PATIENT_BATCHES = 5, 30
FINE_TUNING = [
    "  stages:  # at most this long",
    "    - {epochs: 5, trainable: [head]}",
    "    - {epochs: 10, learning_rate: 0.0001}  # all layers",
]
IN_IMAGES = ["build:", f"  include: [{WEIGHTS}]  # in containers, too"]


def summary(name: str, scan: Scan) -> str:
    """Return what a scan found, one line for each subject."""
    return "\n".join([f"{name}: {scan.images:,} images, {scan.bytes / 1e6:,.1f} MB", *lines(_rows(scan))])


def facts(scan: Scan) -> JsonObject:
    """Return what a scan found as plain values, for JSON."""
    tally = scan.tally
    return {
        "examples": scan.images, "bytes": scan.bytes, "labels": scan.labels, "splits": scan.splits,
        "formats": tally.formats, "unusable": tally.skipped_count, "damaged": tally.damaged, "copies": scan.copies,
        "conflicts": [list(pair) for pair in scan.conflicts], "lookalikes": sum(map(len, scan.alike)),
        "ignored": scan.ignored,
    }  # fmt: skip


def _rows(scan: Scan) -> Iterator[tuple[str, str]]:
    tally = scan.tally
    yield "formats", counted(tally.formats)
    yield "sizes", _sizes(scan)
    yield "converted", "; ".join(f"{count:,} {how}" for how, count in tally.converted.items())
    yield "gray", f"{tally.gray:,} of the images" if tally.gray else ""
    yield "unusable", _named(tally.skipped_count, [f"{readable(key)} ({why})" for key, why in tally.skipped])
    yield "damaged", f"{tally.damaged:,} decode with warnings, and are used" if tally.damaged else ""
    yield "copies", _named(scan.copies, [f"{copy} = {first}" for copy, first in scan.copies_named]) or "none"
    conflicts = _named(len(scan.conflicts), [f"{copy} = {first}" for copy, first in scan.conflicts])
    yield "conflicts", f"{conflicts} (the same image in two classes: one of them is wrong)" if conflicts else ""
    yield "lookalikes", _alike(scan)
    yield "labels", f"{len(scan.labels):,}: {balance(scan.labels)}"
    yield "splits", counted(scan.splits) or "none; Slipway divides each class: 80 % train, 10 % validation, 10 % test"
    yield "ignored", _named(scan.ignored, scan.ignored_named) + " (not images)" if scan.ignored else ""


def _sizes(scan: Scan) -> str:
    smallest, largest = scan.tally.smallest, scan.tally.largest
    if smallest is None or largest is None:
        return ""
    if scan.image_size is None:
        return f"{smallest[0]}x{smallest[1]} pixels (height x width)"
    return (
        f"{smallest[0]}x{smallest[1]} to {largest[0]}x{largest[1]} pixels (height x width), "
        f"the shorter side usually {usual_side(scan.tally)}"
    )


def _alike(scan: Scan) -> str:
    if not scan.alike:
        return ""
    first = " ~ ".join(scan.alike[0][:MAX_NAMED]) + (" ~ …" if len(scan.alike[0]) > MAX_NAMED else "")
    many = "1 group" if len(scan.alike) == 1 else f"{len(scan.alike):,} groups, such as"
    return f"{sum(map(len, scan.alike)):,} images in {many} {first}"


def _named(count: int, named: Iterable[str]) -> str:
    if not count:
        return ""
    shown = list(named)[:MAX_NAMED]
    more = f"; and {count - len(shown):,} more" if count > len(shown) else ""
    return f"{count:,}: {'; '.join(shown)}{more}"


def configuration(name: str, source: str, scan: Scan, *, is_pretrained: bool) -> str:
    """Return a configuration, with comments, that trains on the images without another setting.

    Args:
        name: The project's name.
        source: The folder or archive.
        scan: What it has.
        is_pretrained: Whether to fine-tune a backbone, rather than to train the network in model.py.
    """
    data = [("source", quoted(f"images:{source}"), f"{scan.images:,} images in {len(scan.labels):,} classes")]
    if scan.image_size is not None:
        about = "[height, width] that the network sees"
        data.append(("image_size", str(list(scan.image_size)), about))
    if scan.tally.skipped_count:
        about = f"allowed fraction of unusable images, now {scan.tally.skipped_count:,} of {scan.images:,}"
        data.append(("skip_corrupt", f"{scan.skip_corrupt:.4g}", about))
    if scan.copies:
        about = f"of {scan.copies:,} copies, those in another split than the original"
        data.append(("duplicates", "drop", about))
    if scan.alike and not scan.splits and scan.fewest_groups >= MIN_GROUPS:
        about = f"the {sum(map(len, scan.alike)):,} images that look the same as another one, in one split with it"
        data.append(("near_duplicates", "group", about))
    examples = scan.splits["train"] if scan.splits else int(scan.images * SplitFractions().train)
    batch = fitting_batch(examples - scan.copies, BATCH)
    batches = max(1, examples // batch)
    patience = PATIENCE if is_pretrained else max(PATIENCE, PATIENT_BATCHES // batches)
    uneven = imbalance(scan.labels)
    metric = "macro_f1" if uneven else "accuracy"
    settings = [
        "# yaml-language-server: $schema=schema.json",
        f"name: {name}",
        "data:",
        *aligned(data),
        "model:",
        *aligned(PRETRAINED if is_pretrained else OWN),
        "train:",
        *(FINE_TUNING if is_pretrained else [f"  epochs: {4 * patience}  # at most"]),
        *aligned(
            [
                ("batch_size", str(batch), ""),
                ("learning_rate", "0.001", ""),
                ("early_stop", f"{{patience: {patience}}}", "epochs without a lower validation loss"),
                ("export", "best", "the weights with the lowest validation loss"),
                ("augment", "{flip: true}", "remove it if left and right matter"),
                *([("class_weights", "balanced", uneven)] if uneven else []),
            ]
        ),
        "evaluate:",
        "  gate:",
        f"    metric: {metric}  # promoted is what beats the most frequent class and the champion",
        "    # minimum: 0.9    # and reaches this, if you set it",
        *(IN_IMAGES if is_pretrained else []),
    ]
    return "\n".join(settings) + "\n"
