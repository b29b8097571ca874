"""Whatever is sent, the answer is what was asked for or one sentence with a status below 500."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.studio import Served, asked, studio_of

from duality.studio.app import OPERATIONS, make_application
from duality.studio.server import LOOPBACK, Guard

FORMS = {path: operation.form for path, operation in OPERATIONS.items() if operation.form is not None}
NUMBERS = st.one_of(
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.sampled_from([0, -1, 1e308, 1e-308, 2**63, 10**400]),
)
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=20)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)
# Values that are often right, so that more than the form is reached; small, so that it is quickly done.
SENSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "run": st.sampled_from(["duo", "mdlm", "ar", "sedd-uniform", "plaid"]),
    "model": st.sampled_from(["duo", "mdlm", "ar", "sedd-uniform", "plaid"]),
    "steps": st.integers(1, 3),
    "length": st.integers(1, 12),
    "max_tokens": st.integers(1, 6),
    "draws": st.integers(1, 3),
    "num": st.integers(1, 2),
    "n": st.integers(1, 2),
    "best_of": st.none(),
    "tokens_per_blank": st.integers(1, 3),
    "text": st.text(max_size=12).map(lambda text: f"{text} ___ b"),
    "prompt": st.text(max_size=6),
    "suffix": st.text(max_size=4),
    "temperature": st.sampled_from([1e-300, 1e-9, 0.5, 1.0, 100]),
    "top_p": st.sampled_from([1e-300, 1e-9, 0.5, 1.0]),
    "stop": st.lists(st.text(max_size=2), max_size=4),
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, bytes]:
    """An address and a body: nearly right JSON, any JSON, or any bytes."""
    path = draw(st.sampled_from(list(FORMS)))
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return path, draw(st.binary(max_size=60))
    if kind == 1:
        return path, json.dumps(draw(ANYTHING)).encode()
    fields = FORMS[path].model_fields
    body = {name: draw(SENSIBLE[name]) for name, each in fields.items() if each.is_required()}
    for name in draw(st.lists(st.sampled_from(list(fields)), max_size=4)):
        body[name] = draw(SENSIBLE.get(name, ANYTHING) if draw(st.booleans()) else ANYTHING)
    return path, json.dumps(body).encode()


@pytest.fixture(scope="module")
def app(shelf: Path) -> Guard:
    return make_application(studio_of(shelf), LOOPBACK)


@pytest.mark.slow
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(requests())
def test_any_request_has_an_answer(app: Guard, request_: tuple[str, bytes]) -> None:
    path, body = request_
    found = asked(app, "POST", path, body)
    assert found.status == 200 or 400 <= found.status < 500, found.body
    if found.status != 200:
        assert found.message
        assert "\n" not in found.message
        assert "fault" not in found.message
    elif "event-stream" not in found.headers["content-type"]:
        assert found.json
    else:
        assert all("error" not in event for event in found.events)


@settings(max_examples=50)
@given(st.text(max_size=40), st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "X"]))
def test_any_address_has_an_answer(app: Guard, path: str, method: str) -> None:
    assert asked(app, method, f"/{path}").status < 500
    assert asked(app, "GET", f"/api/runs/{path}/metrics?after={path}").status < 500


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"run": "duo", "steps": ' + b"9" * 5000 + b"}",
        b'{"run": "duo", "steps": NaN}',
        b'{"run": "duo", "steps": Infinity}',
        b'{"run": "duo", "prompt": "\\ud800"}',
        b'{"run": "duo", "prompt": "a\\u0000b"}',
        b'{"run": "duo", "prompt": "a\x01"}',
        b'{"run": "\\u0000\\u001b[31m"}',
        b'{"run": "duo", "keep": [[0, 1e9]]}',
        b'{"run": "duo", "keep": [[9999, 1]]}',
        b'{"run": "duo", "keep": [[0, 99999]]}',
        b'{"run": "duo", "length": 3, "prompt": "longer than three"}',
        b'{"run": "ar", "steps": 3}',
        b'{"run": "sedd-uniform", "temperature": 0.5}',
        b'{"run": "plaid", "prompt": "a"}',
        b'{"run": "duo", "label": "a"}',
        b'{"run": "duo", "guidance": 2}',
        b'{"run": "duo", "sampler": "autoregressive"}',
        b'{"run": "duo", "eta": 0.5}',
        b'{"run": "duo", "grid": "loop"}',
    ],
)
def test_bad_bodies_are_refused_in_one_sentence(app: Guard, body: bytes) -> None:
    for stream in (b"", b', "stream": true}'):
        sent = body[:-1] + stream if stream and body.endswith(b"}") and body[:1] == b"{" else body
        found = asked(app, "POST", "/api/generate", sent)
        assert 400 <= found.status < 500, found.body
        assert len(found.message) < 700
        assert found.message.isprintable()


def test_a_long_text_with_many_brackets_is_no_deep_body(app: Guard) -> None:
    body = json.dumps({"run": "duo", "prompt": "[{" * 40, "length": 81, "steps": 1}).encode()
    assert asked(app, "POST", "/api/generate", body).status == 200


def test_a_text_with_too_many_blanks_is_refused(app: Guard) -> None:
    body = json.dumps({"run": "duo", "text": "a ___" * 3000, "tokens_per_blank": 2048}).encode()
    found = asked(app, "POST", "/api/fill", body)
    assert found.status == 400
    assert "at most 2,048 are allowed" in found.message


def test_a_body_that_is_too_large(server: Served) -> None:
    found = server.post("/api/generate", b'{"run": "' + b"x" * 300_000 + b'"}')
    assert found.status == 413
    assert "262,144 bytes" in found.message


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /\x00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /%ff%fe HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"POST /api/generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /api/generate HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /api/generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    ],
)
def test_any_bytes_over_a_socket_are_survived(server: Served, data: bytes) -> None:
    with server.raw(data) as connection:
        connection.shutdown(socket.SHUT_WR)
        head = b""
        while part := connection.recv(4096):
            head += part
    assert not head or int(head.split(b" ")[1]) < 500, head[:200]
    assert server.get("/api/health").status == 200
