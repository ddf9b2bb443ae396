"""The prediction server's page, used as people use it: the pointer, keys, dropped and pasted files."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from tests.browser import stub
from tests.browser.checks import PALE, check_with_axe
from tests.browser.chromium import Chromium
from tests.browser.stub import BRIGHT, DARK, Stub
from tests.serving.client import until

FOCUSED = "(document.activeElement.name || document.activeElement.id || document.activeElement.tagName)"
BUSY = "document.getElementById('result').getAttribute('aria-busy') === 'true'"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "zero.png").write_bytes(DARK)
    (folder / "photo.png").write_bytes(BRIGHT)
    (folder / "notes.txt").write_text("just a text")
    (folder / "layers.psd").write_bytes(b"8BPS" + bytes(50))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    return made


@pytest.fixture
def images(folder: Path, page: Chromium) -> Iterator[Stub]:
    """The page of a classifier of images, open."""
    with Stub(stub.images(folder), "digits/1", max_body=5_000_000).serving() as server:
        page.open(server.url)
        page.says("digits/1", "h1")
        yield server


@pytest.fixture
def houses(folder: Path, page: Chromium) -> Iterator[Stub]:
    """The page of a regression on four inputs, open."""
    stub.write_examples(folder, ["line 7"], {"area": 70, "sides": [1, 2], "rooms": 3, "street": "Oak"})
    with Stub(stub.table(folder), "houses/1").serving() as server:
        page.open(server.url)
        page.says("houses/1", "h1")
        page.says("line 7", "#examples")
        yield server


def test_it_requests_nothing_but_its_own_server_and_the_console_stays_empty(
    images: Stub, page: Chromium, files: Path
) -> None:
    page.choose(files / "zero.png")
    page.says("dark", "#answer")
    assert sorted(page.requests) == [images.url + name for name in ("", "examples", "model", "predict")]
    assert page.console == []
    assert page.run("document.querySelectorAll('main').length") == 1


def test_only_the_newest_answer_is_shown(images: Stub, page: Chromium, files: Path) -> None:
    images.held = {1}
    page.choose(files / "zero.png")
    until(lambda: images.requests == 1)
    page.choose(files / "photo.png")
    page.says("bright", "#answer h2")
    images.held.clear()
    page.run("new Promise(resolve => setTimeout(resolve, 200))")  # the first answer arrives meanwhile
    assert "photo.png" in page.text("#drop")
    assert page.text("#answer h2") == "bright"


def test_while_a_model_works_the_old_result_is_gray_and_the_button_has_no_effect(houses: Stub, page: Chromium) -> None:
    page.click("#form button")
    page.says("price: 50", "#answer")
    houses.held = {2}
    page.click("#form button")
    page.wait(BUSY)
    page.says("Predicting…", "#state")
    assert page.run("document.querySelector('#form button').ariaDisabled") == "true"
    assert page.run("getComputedStyle(document.getElementById('answer')).filter") == "grayscale(1)"
    page.click("#form button")
    page.press("Enter")
    houses.held.clear()
    page.wait(f"!({BUSY})")
    assert houses.requests == 2
    assert page.run("document.querySelector('#form button').ariaDisabled") == "false"
    assert page.run("document.activeElement.textContent") == "Predict"


def test_values_that_change_while_the_model_works_or_later_make_the_result_outdated(
    houses: Stub, page: Chromium
) -> None:
    houses.held = {1}
    page.click("#form button")
    page.wait(BUSY)
    page.run("document.querySelector('[name=area]').focus()")
    page.type("60")
    houses.held.clear()
    page.says("The inputs have changed since.", "#state")
    page.press("Enter")
    page.says("price: 60", "#answer")
    page.says("Predicted by houses/1", "#state")
    page.type("61")
    page.says("The inputs have changed since.", "#state")


def test_the_model_that_answered_is_named_and_the_users_values_stay(
    houses: Stub, page: Chromium, tmp_path: Path
) -> None:
    page.run("document.querySelector('[name=area]').focus()")
    page.type("60")
    page.press("Enter")
    page.says("price: 60", "#answer")
    second = tmp_path / "second"
    second.mkdir()
    sides = stub.HOUSES.inputs["sides"].model_copy(update={"mean": (5.0, 5.0)})
    inputs = {**stub.HOUSES.inputs, "sides": sides, "floor": stub.HOUSES.inputs["rooms"]}
    houses.use(stub.table(second, stub.HOUSES.model_copy(update={"inputs": inputs}), scale=2.0), "houses/2")
    page.press("Enter")
    page.says("floor: The value is missing.", "#answer")
    page.says("houses/2", "h1")
    page.wait(f"{FOCUSED} === 'area'")
    assert page.run("[...document.querySelectorAll('.field input')].map(each => each.value)") == [
        "60",
        "0 0",
        "0",
        "Elm",
        "0",
    ]
    page.press("Enter")
    page.says("price: 120", "#answer")
    page.says("Predicted by houses/2", "#state")
    assert page.run("document.title") == "houses/2"


def test_all_likely_labels_are_named(folder: Path, page: Chromium) -> None:
    with Stub(stub.labels(folder), "tags/1").serving() as server:
        page.open(server.url)
        page.says("tags/1", "h1")
        assert page.run("document.getElementById('curl').textContent") == "Fill in every input first."
        page.run("document.querySelector('[name=x]').focus()")
        page.type("1")
        page.press("Enter")
        page.says("29 of 80 labels", "#answer")
        assert page.text("#answer h2").split(", ") == [f"label {index}" for index in range(29)]
        assert page.text("#answer summary") == "60 more"
        assert page.run("document.querySelectorAll('#answer details .row').length") == 60


@pytest.mark.parametrize("name", ["notes.txt", "layers.psd"])
@pytest.mark.parametrize("selector", ["#drop", "h1"])
def test_a_dropped_file_that_is_no_image_is_named(
    images: Stub, page: Chromium, files: Path, name: str, selector: str
) -> None:
    page.drop(files / name, selector)
    page.says(f"{name}: The image cannot be decoded: it is not an image of a supported format.", "#answer")
    assert page.run("location.pathname") == "/"
    assert page.run("getComputedStyle(document.querySelector('#drop img')).display") == "none"
    page.drop(files / "photo.png", selector)
    page.says("bright", "#answer h2")


def test_a_file_that_is_too_large_is_not_sent(images: Stub, page: Chromium, files: Path) -> None:
    (files / "huge.png").write_bytes(BRIGHT + bytes(20_000_000))
    page.choose(files / "huge.png")
    page.says("huge.png has 20 MB; the server accepts at most 5 MB.", "#answer")
    assert not any(url.endswith("predict") for url in page.requests)


def test_pasted_images_are_predicted(images: Stub, page: Chromium) -> None:
    page.run(f"""{{
      const data = new DataTransfer();
      const bytes = Uint8Array.from(atob("{base64.b64encode(BRIGHT).decode()}"), each => each.charCodeAt(0));
      data.items.add(new File([bytes], "pasted.png"));
      document.dispatchEvent(new ClipboardEvent("paste", {{ clipboardData: data }}));
    }}""")
    page.says("bright", "#answer h2")
    page.says("pasted.png", "#drop")


def test_the_server_stops_and_returns_and_the_same_file_can_be_chosen_again(
    folder: Path, page: Chromium, files: Path
) -> None:
    first = Stub(stub.images(folder), "digits/1")
    with first.serving():
        page.open(first.url)
        page.says("digits/1", "h1")
        page.choose(files / "photo.png")
        page.says("bright", "#answer h2")
    page.choose(files / "photo.png")
    page.says("The server does not answer. Start it again, then try again.", "#answer")
    page.says("The server does not answer.", "#problem")
    with Stub(stub.images(folder), "digits/2", first.port).serving():
        page.wait("document.getElementById('problem').textContent === ''")
        page.says("digits/2", "h1")
        page.click("#answer button")
        page.says("bright", "#answer h2")
        page.choose(files / "zero.png")
        page.says("dark", "#answer h2")
        page.choose(files / "photo.png")
        page.says("bright", "#answer h2")


def test_a_model_that_cannot_be_loaded_says_why_until_it_can(folder: Path, page: Chromium) -> None:
    server = Stub(stub.images(folder), "digits/1")
    reloader = server.server.reloader
    model, reloader.model = reloader.model, None
    reloader.failure, reloader.failed = OSError(5, "Input/output error"), "digits/1"
    reloader._identity = None
    reloader._source = lambda: stub.Served("digits/1", folder / "missing")
    with server.serving():
        page.open(server.url)
        page.says("The server could not load digits/1: [Errno 2] No such file or directory", "#problem")
        reloader._source = lambda: stub.Served("digits/1", folder)
        assert model is not None
        server.use(model, "digits/1")
        page.says("digits/1", "h1")
        assert page.text("#problem") == ""


def test_the_keyboard_is_enough(houses: Stub, page: Chromium) -> None:
    page.press("Tab")
    assert page.run(FOCUSED) == "area"
    page.type("abc")
    page.press("Enter")
    page.says("area: The value is a text, not a number.", "#answer")
    assert page.run(f"{FOCUSED} + document.activeElement.ariaInvalid") == "areatrue"
    page.type("52")
    page.press("Tab", 3)
    assert page.run(FOCUSED) == "street"
    page.type("Pine")
    page.press("Tab")
    page.press(" ")
    page.says("price: 52", "#answer")
    page.says('street: "Pine" is unknown to the model', "#answer")
    assert page.run("document.activeElement.textContent") == "Predict"
    page.press("Tab")
    page.press("Enter")
    page.says("price: 76", "#answer")
    assert page.run("document.activeElement.textContent") == "line 7"
    assert page.run("document.querySelector('[name=sides]').value") == "1 2"


def test_an_image_is_chosen_by_keyboard_and_the_focus_stays(images: Stub, page: Chromium, files: Path) -> None:
    page.press("Tab")
    assert page.run(FOCUSED) == "image_bytes"
    page.choose(files / "zero.png")
    page.says("dark", "#answer")
    assert page.run(FOCUSED) == "image_bytes"
    assert "Choose an image" in page.run("document.activeElement.labels[0].innerText")


def test_an_empty_category_is_said_and_an_empty_number_is_refused(houses: Stub, page: Chromium) -> None:
    page.run("document.querySelector('[name=street]').focus()")
    page.type("")
    page.press("Backspace")
    page.press("Enter")
    page.says("street: the empty text is unknown to the model", "#answer")
    page.run("document.querySelector('[name=rooms]').focus()")
    page.press("Backspace")
    page.type("")
    page.press("Backspace")
    page.press("Enter")
    page.says("rooms is empty.", "#answer")


def test_fields_have_usual_values_and_say_what_is_usual(houses: Stub, page: Chromium) -> None:
    values = page.run("[...document.querySelectorAll('.field input')].map(input => input.value)")
    assert values == ["50", "0 0", "0", "Elm"]
    page.says("number, mean 50, standard deviation 5", "#form")
    page.says("integer, up to 9", "#form")
    page.says("regression of price", "#about")


def test_many_fields_are_grouped_and_found(folder: Path, page: Chromium) -> None:
    with Stub(stub.wide(folder), "bands/1").serving() as server:
        page.look(1200)
        page.open(server.url)
        page.says("Find one of 200 inputs")
        assert page.run("document.documentElement.scrollHeight") < 1600
        visible = "[...document.querySelectorAll('.field')].filter(each => each.checkVisibility()).length"
        assert page.run(visible) == 24
        page.press("Tab")
        page.type("band_19")
        page.wait(f"{visible} === 11")  # band_19 and band_190 to band_199
        assert page.run("document.querySelector('[name=band_199]').checkVisibility()")
        page.run("document.querySelector('[name=band_199]').focus()")
        page.type("x")
        page.run("document.querySelector('[type=search]').focus()")
        page.type("band_0")
        page.click("#form button")
        page.says("band_199: The value is a text, not a number.", "#answer")
        assert page.run(FOCUSED) == "band_199"


def test_the_result_is_scrolled_into_view(folder: Path, page: Chromium) -> None:
    with Stub(stub.wide(folder), "bands/1").serving() as server:
        page.look(360, 640)
        page.open(server.url)
        page.says("Find one of 200 inputs")
        page.run("document.querySelector('[name=band_0]').focus()")
        page.press("Enter")
        page.says("price: 200", "#answer")
        box = page.run("document.getElementById('answer').getBoundingClientRect().toJSON()")
        assert 0 <= box["top"] < box["bottom"] <= 640


def test_json_is_checked_on_its_own(folder: Path, page: Chromium) -> None:
    with Stub(stub.custom(folder), "own/1").serving() as server:
        page.open(server.url)
        page.says("Instance (JSON)")
        page.run("document.querySelector('textarea').focus()")
        for text in ("{bad", '{"a": 1}, {"a": 2}'):
            page.type(text)
            page.click("#form button")
            page.says("The instance is not JSON: ", "#answer")
            assert page.run(FOCUSED) == "instance"
        assert server.requests == 0
        page.type('{"a": 9007199254740993}')
        page.click("#form button")
        page.says("9007199254740993", "#answer pre")


@pytest.mark.parametrize("language", ["curl", "python"])
def test_the_code_to_copy_works(houses: Stub, page: Chromium, language: str) -> None:
    page.run("document.querySelector('[name=street]').focus()")
    page.type('O\'Brien \\ "Oak" Street')
    page.run("document.querySelector('[name=area]').focus()")
    page.type("51.50")
    page.wait("document.getElementById('curl').textContent.includes('51.50')")
    page.run("navigator.clipboard.writeText = async text => { window.copied = text; }")
    page.click("#code summary")
    page.click(f"#copy-{language}")
    page.says("Copied", f"#copy-{language}")
    code = page.run("window.copied")
    command = ["sh", "-c", code.replace("curl", "curl -s", 1)] if language == "curl" else [sys.executable, "-c", code]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(output.replace("'", '"')) == {"predictions": [{"prediction": 51.5}]}


def test_the_code_to_copy_sends_an_image(images: Stub, page: Chromium, files: Path) -> None:
    page.choose(files / "photo.png")
    page.says("bright", "#answer")
    code = page.run("document.getElementById('python').textContent")
    output = subprocess.run([sys.executable, "-c", code], cwd=files, capture_output=True, text=True, check=True).stdout
    assert "'label': 'bright'" in output
    assert page.run("document.getElementById('curl').textContent").endswith("-H 'Content-Type: image/png'")


def test_an_image_among_other_inputs(folder: Path, page: Chromium, files: Path) -> None:
    (files / "photo.jpg").write_bytes(BRIGHT)
    stub.write_examples(folder, ["7"], {"photo_bytes": {"b64": base64.b64encode(DARK).decode()}, "area": 20})
    with Stub(stub.listing(folder), "listings/1").serving() as server:
        page.open(server.url)
        page.says("listings/1", "h1")
        page.run("document.querySelector('[name=area]').focus()")
        page.type("30")
        page.press("Enter")
        page.says("photo_bytes is empty. Choose an image.", "#answer")
        page.choose(files / "photo.png")
        page.wait("!document.querySelector('[name=area]').ariaInvalid")
        page.click("#form button")
        page.says("31", "#answer h2")
        for language, command in {"curl": ["sh", "-c"], "python": [sys.executable, "-c"]}.items():
            code = page.run(f"document.getElementById('{language}').textContent").replace("curl ", "curl -s ")
            output = subprocess.run([*command, code], cwd=files, capture_output=True, text=True, check=True).stdout
            assert json.loads(output.replace("'", '"')) == {"predictions": [{"prediction": 31.0}]}
        page.wait("document.querySelector('#chosen img').complete")
        page.click("#chosen button")
        page.says("20", "#answer h2")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_is_legible_at_every_width(folder: Path, page: Chromium, tmp_path: Path, dark: bool) -> None:
    encoded = {"b64": base64.b64encode(BRIGHT).decode()}
    made = [stub.images, stub.labels, stub.table, stub.wide, stub.custom]
    for number, make in enumerate(made):
        own = tmp_path / f"model-{number}"
        own.mkdir()
        if make is stub.images:
            stub.write_examples(own, ["a.png"], {"image_bytes": encoded})
        with Stub(make(own), f"a_name_without_any_space_{'x' * 60}/1").serving() as server:
            page.look(360, dark=dark)
            page.open(server.url)
            page.says("a_name", "h1")
            page.wait("!document.getElementById('code').hidden")
            page.run("document.getElementById('code').open = true")
            if make is stub.labels:
                page.run("document.querySelector('[name=x]').value = 1")
            if make is stub.images:
                page.wait("document.querySelector('#chosen button')")
                page.click("#chosen button")
            else:
                page.click("#form button")
            page.wait(f"document.getElementById('answer').childElementCount && !({BUSY})")
            for width in (360, 600, 1200):
                page.look(width, dark=dark)
                assert page.run("document.documentElement.scrollWidth") <= width, make
                assert page.run(PALE) == [], (make, width)
                (tmp_path / f"{make.__name__}-{width}.png").write_bytes(page.shot())


def test_axe_has_nothing_to_say_about_it(houses: Stub, page: Chromium) -> None:
    check_with_axe(page)
