"""The live page in a real Chromium: logging in, reading it, and changing the fleet with it."""

import shutil
import threading
from dataclasses import replace

import pytest
from fake_service import CAMERAS, TOKEN, FakeService
from http_asking import FREE_PORT, serving
from waiting import HANG_GUARD_S

from ekya.config.fleet_sections import HttpConfig
from ekya.models.training.answered import MOST_MISTAKES
from ekya.service.http.server import HttpServer

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is missing; pip install selenium")

from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

pytestmark = [
    pytest.mark.live,
    pytest.mark.virtual,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER), reason="Chromium is missing; apt-get install chromium chromium-driver"
    ),
]

CONTRAST = """
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const part = (c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const color = rgb(getComputedStyle(node).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  return [255, 255, 255];
};
const texts = [...document.querySelectorAll("body *")].filter((node) =>
  node.offsetParent && !node.disabled && [...node.childNodes].some((c) => c.nodeType === 3 && c.data.trim()));
return texts.map((node) => {
  const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
  return [Math.round(((a + 0.05) / (b + 0.05)) * 100) / 100, node.textContent.trim().slice(0, 40)];
}).filter(([ratio]) => ratio < 4.5);
"""
"""Returns texts whose contrast is below what WCAG 2 asks of level AA."""


@pytest.fixture(scope="module")
def running_chromium(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def chromium(running_chromium):
    """A browser that is logged in nowhere: services of one token on one host share its cookie."""
    running_chromium.execute_cdp_cmd("Network.clearBrowserCookies", {})
    return running_chromium


@pytest.fixture
def service():
    return FakeService()


@pytest.fixture
def browser(chromium, service, tmp_path):
    """A browser on the service's page, not logged in; at the end, nothing was refused or failed in it."""
    folder = tmp_path / "city-east"
    folder.mkdir()
    with serving(service, folder) as ask:
        appearance(chromium)
        chromium.get(ask.url)
        yield Browser(chromium, ask.url)
        chromium.get("about:blank")
    severe = [
        entry["message"]
        for entry in chromium.get_log("browser")
        if entry["level"] == "SEVERE" and "picture.jpg" not in entry["message"]
    ]
    assert severe == []


def appearance(driver, scheme="light", width=1360, height=1000):
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
    )


class Browser:
    def __init__(self, driver, url):
        self.driver, self.url = driver, url

    def log_in(self):
        self.find("#token").send_keys(TOKEN, Keys.ENTER)
        self.until(lambda: len(self.all(".tile")) == len(CAMERAS))
        return self

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.find(selector).text

    def replace_text(self, selector, *keys):
        """Types over what is there. ``clear()`` would leave the field, which a renewed page fills again."""
        self.find(selector).send_keys(Keys.CONTROL + "a" + Keys.NULL, *keys)

    def until(self, holds):
        ignored = (StaleElementReferenceException,)
        return WebDriverWait(self.driver, HANG_GUARD_S, 0.05, ignored).until(lambda _: holds())

    def open(self, camera):
        self.find(f"#tile-{camera} a").click()
        self.until(lambda: self.all("#models tbody tr"))

    def forget_refusals(self):
        """Leaves out of the log what the test wanted to be refused."""
        self.driver.get_log("browser")

    def overflow(self):
        return self.driver.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )


def test_link_with_the_token_logs_in_and_leaves_the_address_bar(browser):
    browser.driver.get("about:blank")
    browser.driver.get(f"{browser.url}/?camera=yard#token={TOKEN}")
    browser.until(lambda: len(browser.all(".tile")) == len(CAMERAS))
    assert TOKEN not in browser.driver.current_url
    browser.driver.get(f"{browser.url}/#token={TOKEN}")
    browser.until(lambda: browser.all(".tile"))
    assert TOKEN not in browser.driver.current_url
    browser.driver.delete_all_cookies()
    browser.driver.get("about:blank")
    browser.driver.get(f"{browser.url}/#token=wrong")
    browser.until(lambda: browser.all("#problem"))
    browser.forget_refusals()


def test_page_wants_the_token_and_shows_all_cameras(browser):
    browser.find("#token").send_keys("wrong", Keys.ENTER)
    browser.until(lambda: browser.all("#problem"))
    assert browser.text("#problem") == "This is not the service's token."
    browser.forget_refusals()
    browser.log_in()
    assert [tile.text for tile in browser.all(".tile h2")] == [camera.id for camera in CAMERAS]
    words = {camera.id: browser.text(f"#tile-{camera.id} .pill") for camera in CAMERAS}
    assert words == {
        "crossing": "OK", "gate-north": "OK", "loading-dock": "Unlabelled", "parking-deck": "Paused",
        "station-hall": "Lost", "yard": "OK",
    }  # fmt: skip
    assert browser.text("#tile-gate-north .chip") == "Retraining 12/20"
    assert browser.text("#tile-crossing .accuracy") == "93.4%"
    assert browser.text("#tile-station-hall .accuracy") == "–"
    assert browser.text("#healthy") == "3 of 5"
    assert browser.text("#window-text") == "Window 468 · ends in 2:04"
    assert len(browser.all(".log li")) == 2
    browser.until(lambda: len(browser.all(".tile .picture img")) == len(CAMERAS) - 1)
    browser.until(lambda: len(browser.all(".spark path.accuracy")) >= len(CAMERAS))


def test_page_shows_new_facts_and_pictures_within_seconds(browser, service):
    browser.log_in()
    first = browser.until(lambda: browser.find("#tile-yard img").get_attribute("src"))
    service.cameras["yard"] = replace(service.cameras["yard"], accuracy=0.5, health="stale")
    browser.until(lambda: browser.text("#tile-yard .accuracy") == "50.0%")
    assert browser.text("#tile-yard .pill") == "Stale"
    browser.until(lambda: browser.find("#tile-yard img").get_attribute("src") != first)


def test_camera_is_paused_resumed_and_frozen(browser, service):
    browser.log_in()
    browser.open("crossing")
    assert browser.text("#camera-name") == "crossing"
    assert "91.2%" in browser.text("#why")
    for button, what, after in (
        ("pause", "pause", "Resume"), ("resume", "resume", "Pause"), ("freeze", "freeze", "Unfreeze model"),
    ):  # fmt: skip
        found = browser.find(f"[data-do={button}]")
        found.click()
        browser.until(lambda what=what: (what, "crossing") in service.asked)
        browser.until(lambda found=found, after=after: found.text == after and found.is_enabled())
    assert browser.text("#toast") == "crossing keeps its model"


def test_button_is_off_until_what_it_asked_for_is_done(browser, service):
    service.held = threading.Event()
    browser.log_in()
    browser.open("crossing")
    button = browser.find("[data-do=pause]")
    button.click()
    for accuracy in (0.5, 0.6):
        service.cameras["crossing"] = replace(service.cameras["crossing"], accuracy=accuracy)
        browser.until(lambda accuracy=accuracy: f"{accuracy:.1%}" in browser.text(".facts"))
        assert not button.is_enabled(), "also where the page was rendered anew meanwhile"
        button.click()
    service.held.set()
    browser.until(lambda: button.text == "Resume" and button.is_enabled())
    assert service.asked == [("pause", "crossing")]
    button.click()
    browser.until(lambda: button.text == "Pause" and button.is_enabled())
    assert service.asked == [("pause", "crossing"), ("resume", "crossing")]


def test_camera_is_rolled_back_after_a_question(browser, service):
    browser.log_in()
    browser.open("crossing")
    assert browser.text("td.serving") == "4 · serving"
    browser.find("[data-do=roll-back]").click()
    browser.find("#confirm button[value='']").click()
    assert service.asked == []
    browser.find("[data-do=roll-back]").click()
    browser.find("#confirm button[value=yes]").click()
    browser.until(lambda: service.asked == [("roll-back", "crossing")])
    browser.until(lambda: browser.text("td.serving") == "3 · serving")


def test_chosen_model_serves_again_after_a_question(browser, service):
    browser.log_in()
    browser.open("crossing")
    browser.find("#model-1 [data-do=serve-again]").click()
    assert browser.text("#confirm-text") == "Serve model 1 of crossing again?"
    browser.find("#confirm button[value=yes]").click()
    browser.until(lambda: service.asked == [(("roll-back", 1), "crossing")])
    browser.until(lambda: browser.text("td.serving") == "1 · serving")
    assert not browser.all("#model-1 button"), "it serves"


def test_camera_is_added_changed_and_removed(browser, service):
    browser.log_in()
    browser.find("#add").click()
    browser.find("#new-id").send_keys("yard")
    browser.find("#new-url").send_keys("rtsp://10.0.0.9/live", Keys.ENTER)
    browser.until(lambda: "choose another id" in browser.text("#adding .problem"))
    browser.forget_refusals()
    browser.find("#new-id").send_keys("-2")
    Select(browser.find("#new-kind")).select_by_value("video")
    browser.find("#adding button.primary").click()
    browser.until(lambda: browser.all("#tile-yard-2"))
    source = {"kind": "video", "files": ["rtsp://10.0.0.9/live"]}
    assert service.asked[-1] == ("add", {"id": "yard-2", "source": source, "weight": 1})
    browser.open("yard-2")
    browser.replace_text("#weight", "3", Keys.ENTER)
    browser.until(lambda: service.asked[-1] == ("change", "yard-2", {"weight": 3}))
    browser.driver.execute_script("scrollTo(0, 0)")
    browser.find("[data-do=remove]").click()
    browser.find("#confirm button[value=yes]").click()
    browser.until(lambda: service.asked[-1] == ("remove", "yard-2"))
    browser.until(lambda: not browser.all("#tile-yard-2") and browser.find("#tiles").is_displayed())


def test_page_works_by_keyboard(browser, service):
    browser.log_in()
    browser.find("#tile-crossing a").send_keys(Keys.ENTER)
    browser.until(lambda: browser.all("#models tbody tr"))
    browser.until(lambda: browser.all("#chart svg"))
    chart = browser.find("#chart svg")
    chart.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert "accuracy" in browser.text(".tip")
    browser.find("[data-do=pause]").send_keys(Keys.ENTER)
    browser.until(lambda: service.asked == [("pause", "crossing")])


def test_camera_shows_its_audited_accuracy_with_the_interval(browser):
    browser.log_in()
    browser.open("crossing")
    browser.until(lambda: "88.7% (85.1% to 91.6%, 72 frames)" in browser.text(".facts"))
    browser.find(".back").click()
    browser.open("station-hall")
    browser.until(lambda: "not known yet" in browser.text(".facts"))


def test_chart_has_the_hours_that_are_chosen_and_gaps(browser):
    browser.log_in()
    browser.open("crossing")
    lines = lambda: len(browser.all("#chart path.accuracy"))  # noqa: E731
    browser.until(lambda: lines() == 1)
    browser.find("[data-hours='24']").click()
    browser.until(lambda: lines() == 2)
    assert browser.find("[data-hours='24']").get_attribute("aria-pressed") == "true"


def test_camera_shows_what_a_retraining_changed_and_its_worst_mistakes(browser, service):
    browser.log_in()
    browser.open("crossing")
    assert len(browser.all("#retrainings details")) == 3, "one broke before its first epoch"
    browser.find("#retrainings details summary").click()
    before, after = browser.until(lambda: browser.all(".confusions table"))
    assert before.text.splitlines()[0] == "Before"
    assert [row.text for row in after.find_elements(By.TAG_NAME, "tr")] == [
        "Label person car truck Found", "person 19 1 95.0%", "car 44 3 93.6%", "truck 3 9 75.0%",
    ]  # fmt: skip
    assert browser.text(".mistakes figcaption") == "truck, taken for car, 97.3%"
    all_shown = "return [...document.querySelectorAll('.mistakes img')].every((one) => one.naturalWidth)"
    browser.until(lambda: browser.driver.execute_script(all_shown))
    service.cameras["crossing"] = replace(service.cameras["crossing"], accuracy=0.5)
    browser.until(lambda: "50.0%" in browser.text(".facts"))
    assert browser.find("#retrainings details").get_attribute("open"), "a newer rendering leaves it open"
    assert len(browser.all(".mistakes img")) == MOST_MISTAKES


def test_what_is_typed_stays_while_the_page_is_renewed(browser, service):
    browser.log_in()
    browser.open("yard")
    weight = browser.find("#weight")
    browser.replace_text("#weight", "3.5")
    service.cameras["yard"] = replace(service.cameras["yard"], accuracy=0.5, weight=1.5)
    browser.until(lambda: "50.0%" in browser.text(".facts"))
    assert weight.get_property("value") == "3.5"
    weight.send_keys(Keys.ENTER)
    browser.until(lambda: service.asked == [("change", "yard", {"weight": 3.5})])
    browser.until(lambda: weight.get_property("value") == "1.5")


def test_text_of_a_service_is_never_markup(browser, service):
    evil = "<img src=x onerror=alert(1)>"
    service.cameras["yard"] = replace(service.cameras["yard"], reason=evil, why=evil, state="lost")
    browser.log_in()
    assert browser.text("#tile-yard .note") == evil
    browser.open("yard")
    assert browser.text("#why") == evil
    assert not browser.all("img[src=x]")


@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 360), ("light", 768), ("dark", 1360)])
def test_page_fits_and_is_readable(browser, chromium, scheme, width):
    appearance(chromium, scheme, width)
    assert browser.overflow() <= 0
    assert chromium.execute_script(CONTRAST) == []
    browser.log_in()
    for camera in (None, "gate-north", "station-hall"):
        if camera is not None:
            chromium.get(f"{browser.url}?camera={camera}")
            browser.until(lambda: browser.all("#models tbody tr") and browser.all("#chart path.inference"))
            browser.find("details summary").click()
            browser.until(lambda: len(browser.all(".mistakes img")) == MOST_MISTAKES)
        assert browser.overflow() <= 0
        assert chromium.execute_script(CONTRAST) == []


def test_every_control_has_a_name(browser, chromium):
    browser.log_in()
    unnamed = """
    const named = (node) => node.textContent.trim() || node.labels?.length || node.ariaLabel || node.alt ||
      node.hasAttribute("aria-labelledby") || (node.tagName === "IMG" && node.hasAttribute("alt"));
    const controls = document.querySelectorAll("button, input, select, a, img, progress, [role=region]");
    return [...controls].filter((node) => !named(node)).map((node) => node.outerHTML);
    """
    assert chromium.execute_script(unnamed) == []


def test_log_out_and_ended_session_lead_to_the_log_in(browser, chromium):
    browser.log_in()
    chromium.delete_all_cookies()
    browser.until(lambda: browser.all("#token"))
    browser.forget_refusals()
    browser.log_in()
    browser.find("#logout").click()
    browser.until(lambda: browser.all("#token"))
    browser.forget_refusals()


def test_page_goes_on_after_a_restart_of_the_service(chromium, service, tmp_path):
    appearance(chromium)
    server = HttpServer(service, tmp_path, TOKEN, FREE_PORT)
    server.start()
    chromium.get(server.url)
    browser = Browser(chromium, server.url).log_in()
    assert browser.text("#link") == "Live"
    server.close()
    browser.until(lambda: browser.text("#link") == "Reconnecting")
    again = HttpServer(service, tmp_path, TOKEN, HttpConfig(port=int(server.url.rpartition(":")[2])))
    again.start()
    browser.until(lambda: browser.text("#link") == "Live")
    chromium.get("about:blank")
    chromium.get_log("browser")
    again.close()
