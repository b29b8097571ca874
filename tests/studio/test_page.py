"""The page in a real browser: each view does what it says, shows text as text, and the console has no error."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import session
from support.browser import FLAGS, MARKUP, Running, browser_program, serving, train_runs
from support.runs import small_recipe

from duality.cli.main import main
from duality.files.lock import locked
from duality.models.model import load
from duality.models.trace import read_trace
from duality.training.metrics import append_metrics

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]
VIEWS = ("write", "race", "duality", "train", "score")
Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The studio, with three runs and a judge."""
    browser_program()
    folder = tmp_path_factory.mktemp("studio")
    train_runs(folder)
    with serving(folder) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    program = browser_program()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield found
        found.close()


@pytest.fixture
def said() -> list[str]:
    """What the pages of a test have said in their consoles."""
    return []


@pytest.fixture
def open_view(studio: Running, browser: Browser, said: list[str]) -> Iterator[Open]:
    """Opens views; at the end, no page may have said anything in its console."""
    contexts = []

    def opened(view: str = "write", *, width: int = 1200, motion: bool = False, scheme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 800},
            reduced_motion="no-preference" if motion else "reduce",
            color_scheme="dark" if scheme == "dark" else "light",
        )
        context.set_default_timeout(30_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(f"{studio.address}#{view}")
        page.wait_for_selector("body[data-ready]")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []


def shown(page: Page, within: str = "main") -> list[tuple[str, bool]]:
    """The tokens of the first text: how each reads, and whether it is lit."""
    script = f"""[...document.querySelector("{within} .tokens").children].map((each) =>
        [each.textContent, each.classList.contains("changed")])"""
    return [(text, lit) for text, lit in page.evaluate(script)]


def write(page: Page, count: int = 1, **fields: str) -> None:
    """Fill in some fields, and let the model write."""
    for label, value in fields.items():
        page.get_by_label(label, exact=True).fill(value)
    page.get_by_role("button", name="Write", exact=True).click()
    page.wait_for_selector(f"[data-written='{count}']")


def scrub(page: Page, moment: int) -> None:
    """Move the slider of time."""
    page.locator(".transport input").first.fill(str(moment))


def sampled(command: str, studio: Running, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a command that the page shows prints as JSON."""
    monkeypatch.chdir(studio.folder)
    program, *arguments = shlex.split(command)
    assert program == "duality"
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def choose(page: Page, run: str) -> None:
    page.get_by_role("radio", name=re.compile(f"^{run}")).check()


def test_each_view_opens(open_view: Open) -> None:
    page = open_view()
    for name in VIEWS:
        page.get_by_role("link", name=name, exact=False).first.click()
        page.wait_for_selector(f"nav a[href='#{name}'][aria-current=page]")
        assert page.title().lower().startswith(name)
        assert page.locator("main").inner_text().strip()
        assert page.locator("h1").count() == 1
    assert page.locator(".charts svg polyline").count() == 0  # the view before the last is gone


def test_scrubbing_shows_every_step_as_it_was_sent(open_view: Open, studio: Running) -> None:
    page = open_view()
    write(page, Seed="5", Steps="6")
    pieces: dict[str, str] = {}
    steps = []
    for event in studio.events({"run": "duo", "seed": 5, "steps": 6}):
        pieces |= event.get("pieces", {})
        steps += [event] if event["type"] == "step" else []
    assert len(steps) == 7
    for moment in (6, 0, 3, 1, 2, 5, 4):
        scrub(page, moment)
        event = steps[moment]
        wanted = [(pieces[str(token)], place in event["changed"]) for place, token in enumerate(event["tokens"])]
        assert shown(page) == wanted
        assert page.locator(".sheet .counter").inner_text().startswith(f"step {moment} of 6")


def test_a_token_has_its_history_and_its_alternatives(open_view: Open, studio: Running) -> None:
    page = open_view()
    write(page, Seed="2")
    events = [event for event in studio.events({"run": "duo", "seed": 2, "alternatives": 5}) if event["type"] == "step"]
    scrub(page, 5)
    place = 11
    page.locator(".tokens .token").nth(place).hover()
    assert page.locator(".inspector h2").inner_text().startswith("Place 12")
    probabilities = page.locator(".inspector .bars li > span:last-child").all_inner_texts()
    assert len(probabilities) == 5
    assert float(probabilities[0].removesuffix(" %")) == pytest.approx(100 * events[5]["best"][place][0][1], rel=0.06)
    tokens = [event["tokens"][place] for event in events[:6]]
    changes = 1 + sum(before != after for before, after in zip(tokens, tokens[1:]))
    assert page.locator(".inspector .history li").count() == changes


def test_the_text_is_that_of_the_command(
    open_view: Open, studio: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_view()
    write(page, Prompt="the cat", Suffix="mat.", Seed="3", Temperature="0.7")
    assert page.locator(".sheet .when").inner_text() == "step 8"  # at once, as no motion is wanted
    assert page.locator(".play").get_attribute("aria-label") == "Play"
    command = page.locator(".commandline .command").inner_text()
    assert command.startswith("duality sample runs/duo ")
    row = sampled(command, studio, capsys, monkeypatch)
    announced = page.locator("#announce").inner_text()
    assert announced.startswith("Written in 8 steps")
    assert announced.split(": ", 1)[1].split() == row["text"].split()
    tokenizer = load(studio.folder / "runs" / "duo").tokenizer
    assert [text.strip() for text, _ in shown(page)] == [tokenizer.decode([token]).strip() for token in row["tokens"]]


def test_pinned_tokens_stay_and_the_rest_is_written_again(
    open_view: Open, studio: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_view()
    write(page, Seed="1")
    scrub(page, 3)
    before = shown(page)
    for place in (4, 9, 10):
        page.locator(".tokens .token").nth(place).click()
    page.locator(".tokens .token").nth(10).click()  # and not the last one after all
    assert page.locator(".tokens .pinned").count() == 2
    page.get_by_role("button", name="Write the rest again").click()
    page.wait_for_selector("[data-written='2']")
    scrub(page, 8)
    after = shown(page)
    assert [after[place][0] for place in (4, 9)] == [before[place][0] for place in (4, 9)]
    command = page.locator(".commandline .command").inner_text()
    assert "--keep 4:" in command
    row = sampled(command, studio, capsys, monkeypatch)
    tokenizer = load(studio.folder / "runs" / "duo").tokenizer
    assert [text.strip() for text, _ in after] == [tokenizer.decode([token]).strip() for token in row["tokens"]]
    assert page.locator(".tokens .pinned").count() == 2


def test_a_race_ends_with_the_texts_of_the_commands_and_can_be_saved(
    open_view: Open,
    studio: Running,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = open_view("race")
    panes = page.locator(".pane")
    assert panes.count() == 3
    page.get_by_label("Seed").fill("4")
    page.get_by_role("button", name="Start").click()
    page.wait_for_selector(".race[data-finished]")
    for number in range(3):
        pane = panes.nth(number)
        row = sampled(pane.locator(".command").text_content() or "", studio, capsys, monkeypatch)
        model = load(studio.folder / "runs" / str(pane.locator("select").first.input_value()))
        found = pane.locator(".token").all_text_contents()
        assert len(found) == len(row["tokens"])
        plain = [model.tokenizer.decode([token]).strip() for token in row["tokens"]]
        assert [text.strip() for text in found] == plain
        facts = dict(zip(pane.locator("dt").all_inner_texts(), pane.locator("dd").all_inner_texts()))
        assert 0 < int(facts["network calls"]) <= row["steps"]  # a masked model need not be asked at every step
        assert float(facts["seconds"]) > 0
        assert {facts["entropy"], facts["perplexity"]}.isdisjoint({"–"})
    texts = [panes.nth(number).locator(".tokens").text_content() for number in range(3)]
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as HTML").click()
    download.value.save_as(tmp_path / "race.html")
    scrub(page, 0)  # the replay begins with noise
    assert "step 0" in panes.first.inner_text()
    page.goto((tmp_path / "race.html").as_uri())
    assert page.title().startswith("A race: duo, 8 steps · ")
    assert page.locator(".pane .tokens").all_text_contents() == texts


def test_markup_of_a_model_is_text(open_view: Open, studio: Running) -> None:
    page = open_view()
    write(page, Prompt=" ".join(MARKUP), Suffix=MARKUP[0])
    assert {text.strip() for text, _ in shown(page)} >= set(MARKUP)
    page.locator(".tokens .token").first.hover()
    assert MARKUP[0] in page.locator(".inspector h2").inner_text()
    sample = studio.folder / "runs" / "duo" / "samples" / "step-00000002.jsonl"
    assert MARKUP[0] in sample.read_text(encoding="utf-8")
    page.goto(f"{studio.address}#train")
    page.get_by_label("Look at").select_option("duo")
    page.locator(".train .transport input").fill("0")
    page.locator("blockquote", has_text="</script>").first.wait_for()
    page.goto(f"{studio.address}#score")
    page.get_by_label("Text", exact=True).fill(" ".join(MARKUP))
    page.get_by_role("button", name="Score").click()
    page.wait_for_selector(".score .token")
    page.wait_for_selector(".panes:not([aria-busy])")
    assert page.locator("main script, main img[src=x]").count() == 0
    assert page.title() == "Score · duality studio"


def test_keys_play_step_and_pin(open_view: Open) -> None:
    page = open_view(motion=True)
    page.get_by_label("Steps", exact=True).fill("4")
    page.get_by_label("Steps", exact=True).blur()
    page.locator("body").press("Space")  # nothing is written yet: write
    page.wait_for_selector("[data-written='1']")
    page.wait_for_selector(".play[aria-label=Play]")  # played to its end
    assert page.locator(".sheet .when").inner_text() == "step 4"
    page.locator("body").press("ArrowLeft")
    page.locator("body").press("ArrowLeft")
    page.locator("body").press("ArrowRight")
    assert page.locator(".sheet .when").inner_text() == "step 3"
    page.locator("body").press("Space")
    page.wait_for_selector(".play[aria-label=Play]")
    page.locator(".tokens .token").first.focus()
    for key in ("ArrowRight", "ArrowRight", "Enter", "End", "Enter"):
        page.keyboard.press(key)
    places = page.evaluate("[...document.querySelectorAll('main .tokens .token')].map((each) => each.ariaPressed)")
    assert [place for place, pressed in enumerate(places) if pressed == "true"] == [2, 23]
    assert page.locator(".sheet .when").inner_text() == "step 4"  # the arrows moved between tokens
    page.get_by_role("button", name="Write again").click()
    page.wait_for_selector("[data-written='2'] .play[aria-label=Play]")
    page.keyboard.press("Space")  # the button was pressed, but plays now
    page.wait_for_selector(".play[aria-label=Pause]")
    scrub(page, 1)
    page.locator(".transport input").first.press("Space")  # also on the slider
    page.wait_for_selector(".play[aria-label=Pause]")
    assert page.locator("[data-written]").get_attribute("data-written") == "2"


def test_a_run_that_is_trained_meanwhile_can_be_chosen(open_view: Open, studio: Running) -> None:
    page = open_view()
    assert page.get_by_role("radio").count() == 3
    copy = shutil.copytree(studio.folder / "runs" / "duo", studio.folder / "runs" / "another")
    try:
        page.get_by_role("radio", name=re.compile("^another")).check()
        assert page.get_by_role("radio").count() == 4
    finally:
        shutil.rmtree(copy)


def test_a_class_can_be_chosen_and_guided(
    open_view: Open, studio: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with labels: its classes are offered, and the text is that of the command with the class and guidance."""
    rows = [{"text": f"the {animal} sat on a mat.", "label": animal} for animal in ("cat", "mat.") * 60]
    corpus = studio.folder / "animals.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    settings = ("data.labels=true", "data.packing=document", "data.length=24", "training.steps=4")
    tokenizer = f"data.tokenizer={studio.folder / 'tokenizer.json'}"
    session.train(small_recipe(corpus, *settings, tokenizer), studio.folder / "runs" / "animals")
    try:
        page = open_view()
        choose(page, "duo")
        assert not page.get_by_label("Class", exact=True).is_visible()
        choose(page, "animals")
        assert page.get_by_label("Class", exact=True).locator("option").all_inner_texts() == ["none", "cat", "mat."]
        page.get_by_label("Class", exact=True).select_option("cat")
        write(page, Guidance="2", Steps="4", Seed="7")
        command = page.locator(".commandline .command").inner_text()
        assert "--label cat --guidance 2" in command
        row = sampled(command, studio, capsys, monkeypatch)
        decode = load(studio.folder / "runs" / "animals").tokenizer.decode
        assert [text.strip() for text, _ in shown(page)] == [decode([token]).strip() for token in row["tokens"]]
    finally:
        shutil.rmtree(studio.folder / "runs" / "animals")


def test_a_refusal_is_shown_and_the_page_goes_on(open_view: Open, said: list[str]) -> None:
    page = open_view()
    write(page, Prompt="the cat " * 30)
    assert "prompt and suffix have 60 tokens" in page.locator(".error").inner_text()
    assert [text for text in said if "400" not in text] == []  # the browser itself says the status
    said.clear()
    page.get_by_label("Prompt", exact=True).fill("the cat")
    page.get_by_role("button", name="Write again").click()
    page.wait_for_selector("[data-written='2']")
    assert not page.locator(".error").is_visible()
    assert page.locator("#announce").inner_text().startswith("Written")


def luminance(colour: str) -> float:
    """The relative luminance of WCAG of rgb(r, g, b)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(page: Page, front: str, back: str) -> float:
    """The contrast of two of the page's colours."""
    script = """([front, back]) => [front, back].map((name) => {
        const probe = document.createElement("i"); probe.style.color = `var(${name})`; document.body.append(probe);
        const found = getComputedStyle(probe).color; probe.remove(); return found; })"""
    one, other = sorted(map(luminance, page.evaluate(script, [front, back])))
    return (other + 0.05) / (one + 0.05)


def check_colours(page: Page) -> None:
    """All texts can be read on both backgrounds."""
    for back in ("--paper", "--raised"):
        for front in ("--ink", "--soft", "--accent", "--bad", *(f"--s{number}" for number in range(8))):
            assert contrast(page, front, back) >= 4.5, (front, back)
    assert contrast(page, "--on-accent", "--accent") >= 4.5
    assert contrast(page, "--on-lit", "--lit") >= 4.5


def test_colours_can_be_read_and_follow_the_system_and_the_switch(open_view: Open) -> None:
    page = open_view(scheme="dark")

    def brightness() -> float:
        return luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert brightness() < 0.05
    check_colours(page)
    page.get_by_role("button", name="Colours").click()
    assert brightness() > 0.8
    check_colours(page)
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert brightness() > 0.8  # it is kept
    page.get_by_role("button", name="Colours").click()
    assert brightness() < 0.05


def test_a_phone_shows_every_view_and_every_control_has_a_name(open_view: Open, studio: Running) -> None:
    page = open_view(width=360)
    write(page)
    for name in VIEWS:
        page.goto(f"{studio.address}#{name}")
        page.wait_for_selector(f"nav a[href='#{name}'][aria-current=page]")
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") == 360, name
        outside = """[...document.querySelectorAll("main button, main input, main select, main .token")].filter(
            (each) => each.checkVisibility() && each.getBoundingClientRect().right > 361).length"""
        assert page.evaluate(outside) == 0, name
        unnamed = """[...document.querySelectorAll("button, input, select, textarea, [role=img]")].filter((each) =>
            each.checkVisibility() && !each.ariaLabel && !each.labels?.length && !each.textContent.trim()).length"""
        assert page.evaluate(unnamed) == 0, name


def test_training_is_shown_live(open_view: Open, studio: Running) -> None:
    folder = studio.folder / "runs" / "mdlm"
    with locked(folder):
        page = open_view("train")
        page.locator(".chart svg[aria-label*='mdlm, now']").first.wait_for()
        assert page.locator(".train .models").inner_text().count("running") == 1
        row = {"step": 9, "phase": "bound", "loss": 123.456, "learning_rate": 0.1, "gradient_norm": 1.0}
        append_metrics(folder, {**row, "seconds": 1.0, "since": 0})
        page.locator(".chart svg[aria-label*='duo, now'][aria-label*='mdlm, now 123']").wait_for(timeout=16_000)
    page.get_by_label("Look at").select_option("mdlm")
    page.get_by_label("Compare its recipe with").select_option("ar")
    page.wait_for_selector("thead th:nth-child(3)")
    rows = dict(
        zip(page.locator("tbody th").all_inner_texts(), page.locator("tbody td:nth-child(2)").all_inner_texts())
    )
    assert rows["method.type"] == '"MDLM"'
    assert "training.steps" not in rows  # the same in both


def test_scores_are_those_of_the_library(open_view: Open, studio: Running) -> None:
    page = open_view("score")
    page.get_by_label("Text", exact=True).fill("the cat sat on a mat.")
    page.get_by_role("button", name="Score").click()
    page.wait_for_selector(".panes:not([aria-busy]) .pane .facts >> nth=2")
    for run in ("duo", "ar"):
        found = load(studio.folder / "runs" / run).surprisal("the cat sat on a mat.", num_draws=16)
        pane = page.get_by_role("region", name=run, exact=True)
        titles = pane.locator(".token").evaluate_all("all => all.map((each) => each.title)")
        assert [float(title.split()[0]) for title in titles] == pytest.approx([each.nats for each in found], rel=0.01)
        assert pane.locator(".token").all_text_contents() == [each.text for each in found]


def test_the_duality_is_true(open_view: Open, studio: Running) -> None:
    """The argmax of the page's own Gaussian has the signal that the library's T says, and its path the right law."""
    page = open_view("duality")
    page.wait_for_selector(".chart circle")
    script = """async (states) => { const {counted, path, signal} = await import("/duality.js");
        const paths = Array.from({length: 500}, (_, seed) => path(states, seed + 1)[120]);
        const mean = paths.reduce((sum, w) => sum + w[0], 0) / 500;
        const power = paths.reduce((sum, w) => sum + w[1] ** 2, 0) / 500;
        return {points: counted(states, 5000), mean, power, signal: signal(120)}; }"""
    for states in (2, 6):
        found = page.evaluate(script, states)
        table = studio.get(f"/api/operator?states={states}")
        for a, level in found["points"]:
            wanted = table["discrete"][round(200 * a)]
            assert level == pytest.approx(wanted, abs=4 * 0.5 / 5000**0.5 * states / (states - 1))
        assert found["mean"] == pytest.approx(found["signal"], abs=4 / 500**0.5)
        assert found["power"] == pytest.approx(1 - found["signal"] ** 2, rel=4 * (2 / 500) ** 0.5)
    before = page.locator(".duality .counter").inner_text()
    page.locator("body").press("ArrowRight")
    assert page.locator(".duality .counter").inner_text() != before


def test_a_saved_file_plays_alone(open_view: Open, browser: Browser, tmp_path: Path) -> None:
    page = open_view()
    write(page, Prompt=MARKUP[0], Seed="6")
    scrub(page, 4)
    wanted = shown(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as HTML").click()
    download.value.save_as(tmp_path / "saved.html")
    context = browser.new_context(offline=True, reduced_motion="reduce")
    alone, said, asked = context.new_page(), list[str](), list[str]()
    alone.on("console", lambda message: said.append(message.text))
    alone.on("pageerror", lambda error: said.append(str(error)))
    alone.on("request", lambda request: asked.append(request.url))
    alone.goto((tmp_path / "saved.html").as_uri())
    assert alone.title() == "duo writes in 8 steps"
    scrub(alone, 4)
    assert shown(alone) == wanted
    alone.locator(".tokens .token").nth(3).hover()
    assert alone.locator(".inspector .bars li").count() == 5
    alone.locator("body").press("ArrowLeft")
    assert alone.locator(".when").inner_text() == "step 3"
    # nothing can be added that its policy does not know
    alone.evaluate("""() => { const bad = document.createElement("script");
        bad.textContent = "document.title = 'broken'"; document.body.append(bad); }""")
    assert alone.title() == "duo writes in 8 steps"
    assert asked == [(tmp_path / "saved.html").as_uri()]
    assert [text for text in said if "Content Security Policy" not in text] == []
    assert len(said) == 1
    context.close()


def test_a_saved_trace_is_one(open_view: Open, studio: Running, tmp_path: Path) -> None:
    page = open_view()
    choose(page, "ar")
    write(page, Length="9")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save the trace").click()
    download.value.save_as(tmp_path / "trace.json")
    (sample,) = read_trace(tmp_path / "trace.json").samples
    end = next(event for event in studio.events({"run": "ar", "length": 9}) if event["type"] == "end")
    assert list(sample.frames[-1].tokens) == end["tokens"]
    assert len(sample.frames) == 10
    assert main(["trace", str(tmp_path / "trace.json"), "--svg", str(tmp_path / "out.svg")]) == 0
