"""Who may ask: other sites, other names of this machine and clients without the token may not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.studio import Served, asked, studio_of

from duality.studio.app import make_application
from duality.studio.server import LOOPBACK, Address, Guard

TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Guard:
    return make_application(studio_of(tmp_path_factory.mktemp("none")), LOOPBACK)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8321"},
        {"host": "127.0.0.1.evil.example"},
        {"host": ""},
        {"host": "[::1"},
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:9"},
        {"origin": "null"},
        {"origin": "http://["},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    ],
)
def test_others_are_refused(app: Guard, headers: dict[str, str]) -> None:
    for method, path in (("GET", "/api/runs"), ("POST", "/api/generate"), ("GET", "/")):
        found = asked(app, method, path, b"{}", headers)
        assert found.status == 403
        assert "open the address" in found.message


def test_the_page_itself_and_links_to_it_are_answered(app: Guard) -> None:
    own = {"host": "localhost:8321", "origin": "http://localhost:8321", "sec-fetch-site": "same-origin"}
    assert asked(app, "GET", "/api/runs", headers=own).status == 200
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert asked(app, "GET", "/", headers=link).status == 200
    assert asked(app, "GET", "/api/runs", headers=link).status == 403


def test_a_form_of_another_site_is_refused(app: Guard) -> None:
    """A browser sends these types to another site without asking it."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        found = asked(app, "POST", "/api/generate", b"{}", {"content-type": kind})
        assert found.status == 415
        assert "send application/json" in found.message


def test_every_answer_has_a_strict_policy(server: Served) -> None:
    for path in ("/", "/api/runs", "/nothing", "/api/generate"):
        headers = server.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"


def test_the_token(tmp_path: Path) -> None:
    app = make_application(studio_of(tmp_path), None, TOKEN)
    assert asked(app, "GET", "/api/runs").status == 401
    wrong = ({"authorization": f"Bearer {TOKEN}x"}, {"cookie": "duality-token="}, {"authorization": "Bearer é"})
    for headers in wrong:
        assert asked(app, "GET", "/api/runs", headers=headers).status == 401
    assert asked(app, "GET", f"/api/runs?token={TOKEN[:-1]}").status == 401
    assert asked(app, "GET", "/api/runs", headers={"authorization": f"Bearer {TOKEN}"}).status == 200
    opened = asked(app, "GET", f"/?token={TOKEN}", headers={"host": "any.example"})
    assert opened.status == 200
    assert "HttpOnly; SameSite=Strict" in opened.headers["set-cookie"]
    cookie = opened.headers["set-cookie"].partition(";")[0]
    assert asked(app, "GET", "/api/runs", headers={"cookie": f"a=b; {cookie}"}).status == 200
    assert asked(app, "GET", "/api/runs", headers={"cookie": cookie, "origin": "http://evil.example"}).status == 403


def test_two_studios_of_a_machine_have_two_cookies(tmp_path: Path) -> None:
    """A browser keeps cookies by the name of the machine, whatever the port."""
    jar: dict[str, str] = {}
    for port in (8321, 8322):
        token = f"{TOKEN}-{port}"
        app = make_application(studio_of(tmp_path), LOOPBACK, token)
        opened = asked(app, "GET", f"/?token={token}", headers={"host": f"localhost:{port}"})
        name, _, value = opened.headers["set-cookie"].partition(";")[0].partition("=")
        jar[name] = value
    cookies = "; ".join(f"{name}={value}" for name, value in jar.items())
    for port in (8321, 8322):
        app = make_application(studio_of(tmp_path), LOOPBACK, f"{TOKEN}-{port}")
        for host in (f"localhost:{port}", f"[::1]:{port}"):
            assert asked(app, "GET", "/api/runs", headers={"host": host, "cookie": cookies}).status == 200


@pytest.mark.parametrize("host", ["[::1", "::1]", "[]", "[[::1]]", "[127.0.0.1]", "[localhost]", "lo[cal"])
def test_brackets_are_around_an_address(host: str) -> None:
    with pytest.raises(ValueError, match=r"brackets stand around an IPv6 address alone, as in \[::1\]"):
        Address(host, 0, TOKEN)
    assert Address("[::1]", 0).url(80) == "http://[::1]:80/"


def test_an_open_address_needs_a_good_token() -> None:
    Address("127.0.0.1", 0, None)
    Address("::1", 0, None)
    Address("0.0.0.0", 0, TOKEN)
    for host, token in (("0.0.0.0", None), ("example.org", None), ("127.0.0.1", "short"), ("::", "with;semicolons;;;")):
        with pytest.raises(ValueError, match="--token"):
            Address(host, 0, token)


def test_the_names_of_a_studio() -> None:
    assert Address("127.0.0.1", 0).hosts == LOOPBACK
    assert Address("0.0.0.0", 0, TOKEN).hosts is None
    assert Address("Host.Example", 0, TOKEN).hosts == (*LOOPBACK, "host.example")
    assert "0.0.0.0" not in Address("0.0.0.0", 0, TOKEN).url(80)


def test_no_path_reaches_the_disk(shelf: Path) -> None:
    """A run is one of those that are listed; a path, however written, is only a name that is not among them."""
    app = make_application(studio_of(shelf / "duo"), LOOPBACK)
    secrets = ("../ar", "/etc", str(shelf / "ar"), "..%2far", "duo/../../ar", "./duo", "duo/.", "duo\\..\\ar", "duo/")
    for name in secrets:
        for kind in ("recipe", "metrics", "samples"):
            assert asked(app, "GET", f"/api/runs/{name}/{kind}").status == 404, name
    assert asked(app, "GET", "/api/runs/duo/recipe").json["name"] == "duo-laptop"
    for path in ("/../app.py", "/page/index.html", "/index.html/..", "/..%2fapp.py", "//etc/passwd"):
        assert asked(app, "GET", path).status == 404
