"""`slipway publish`: upload a registered model with a model card to the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from slipway.core.errors import UserError
from slipway.pipelines.options import Json, Registry
from slipway.pipelines.terminal import console, print_json, say, user_errors

TARGET = re.compile(r"hf:(?P<repo>[\w.-]{1,96}/[\w.-]{1,96})")
# Files with examples of the data set, which a public repository would show to everybody.
WITH_EXAMPLES = "examples.json"


@user_errors
def publish(
    destination: Annotated[str, typer.Argument(metavar="hf:ORG/NAME", help="The model repository.")],
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL[@VERSION]]", help="A registered model; default: the champion of the only one."),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Create a public repository, not a private one.")] = False,
    license_: Annotated[
        str | None, typer.Option("--license", metavar="LICENSE", help="The model's license, such as apache-2.0.")
    ] = None,
    replace_card: Annotated[
        bool, typer.Option("--replace-card", help="Replace a model card that was edited on the hub.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the card and the files; upload nothing.")] = False,
    registry: Registry = Path("models"),
    as_json: Json = False,
) -> None:
    """Upload a registered model with a model card to the Hugging Face Hub, unless it is there."""
    from slipway.components.prepare_data.huggingface.hub import Repository
    from slipway.components.register_model.registry import Registry as Registered
    from slipway.core.paths import in_project
    from slipway.pipelines.huggingface import publishing
    from slipway.pipelines.prediction import models

    match = TARGET.fullmatch(destination)
    if match is None:
        near = f"hf:{destination}" if TARGET.fullmatch(f"hf:{destination}") else "hf:ORG/NAME"
        raise UserError(
            f"{destination!r} is not a valid model repository.", setting="hf:ORG/NAME", value=destination,
            allowed="hf:ORG/NAME", fix=f"slipway publish {near}",
        )  # fmt: skip
    chosen = models.find(None if model is None else re.sub(r"@(\d+)$", r"/\1", model), registry)
    if chosen.version is None:
        raise UserError(
            f"{chosen} is not a registered model.", setting="MODEL", value=model,
            allowed="NAME, or NAME@VERSION, of a registered model: its metrics and origin are recorded",
            fix="slipway run, which registers a model that passes the gate",
        )  # fmt: skip
    version = Registered(in_project(registry)).version(chosen.name, chosen.version)
    publication = publishing.Publication.of(version, match["repo"], license_)
    sizes = publication.sizes
    if dry_run:
        if as_json:
            print_json({"card": publication.card, "files": sizes})
            return
        console.print(publication.card, markup=False, highlight=False, soft_wrap=True)
        for name, size in sizes.items():
            console.print(f"{size:>14,}  {name}", markup=False, highlight=False, soft_wrap=True)
        return
    if public and any(name.endswith(f"/{WITH_EXAMPLES}") for name in sizes):
        say(f"{WITH_EXAMPLES} has a few test examples with the model's predictions, which everybody will see")
    repository = Repository("model", match["repo"], "hf:ORG/NAME", destination)
    say(f"publishing {chosen}, {len(sizes):,} files of {sum(sizes.values()) / 1e6:,.1f} MB, to {repository.url}")
    published = publishing.publish(publication, repository, public=public, replace_card=replace_card)
    if as_json:
        print_json({**vars(published), "model": version.model, "version": version.number})
        return
    kind = "private" if published.private else "public"
    if public and published.private and not published.created:
        say(f"the repository stays private; to change that: {repository.url}/settings")
    done = "published" if published.new else "already there:"
    console.print(
        f"{done} {chosen} in the {kind} repository {published.url}, commit {published.commit[:12]}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
