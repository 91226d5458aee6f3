"""Who may ask the server of the page, for what, and how much; and what a bad request hears."""

import base64
import json
import socket
import sys
import time

import pytest
from looking_examples import a_png
from serving_tools import Live

from regard.looking.look_page import SERVED_CSP

RUN = {"model": 0, "text": "nobody sang"}


def test_every_answer_has_the_policy_and_no_other_page_may_read_it(live):
    for path, status in (
        ("/", 200),
        ("/assets/look.js", 200),
        ("/api/models", 200),
        ("/nothing", 404),
        ("/api/runs/999", 404),
    ):
        answer = live.ask(path)
        assert answer.status == status
        assert answer.headers["content-security-policy"] == SERVED_CSP
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert "server" not in answer.headers


@pytest.mark.parametrize(
    "path", ["/docs", "/redoc", "/openapi.json", "/assets/../look_page.py", "/assets/x.js", "/api", "/api/runs/1/x"]
)
def test_what_is_not_declared_is_refused(live, path):
    answer = live.ask(path)
    assert answer.status == 404
    assert answer.json == {"code": "usage", "message": "not found", "field": None}


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Host": "evil.example"}, 403, "host"),
        ({"Host": "127.0.0.1"}, 403, "host"),
        ({"Host": "127.0.0.1:1"}, 403, "host"),
        ({"Host": ""}, 403, "host"),
        ({"Origin": "http://evil.example"}, 403, "origin"),
        ({"Origin": "null"}, 403, "origin"),
        ({"Origin": "https://127.0.0.1:{port}"}, 403, "origin"),
        ({"Sec-Fetch-Site": "cross-site"}, 403, "origin"),
        ({"Sec-Fetch-Site": "same-site"}, 403, "origin"),
        ({"Content-Type": "text/plain"}, 415, "format"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "format"),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415, "format"),
    ],
)
def test_another_page_cannot_use_a_browser_to_ask(live, headers, status, code):
    given = {name: value.format(port=live.port) for name, value in headers.items()}
    answer = live.ask("/api/runs", RUN, headers=given)
    assert (answer.status, answer.json["code"]) == (status, code)


def test_the_page_itself_may_ask(live):
    for host in (f"127.0.0.1:{live.port}", f"localhost:{live.port}", f"[::1]:{live.port}"):
        given = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        assert live.ask("/api/runs", RUN, headers=given).status == 201


def test_a_header_that_is_there_twice_is_refused(live):
    with socket.create_connection(("127.0.0.1", live.port), timeout=20) as raw:
        origins = f"Origin: http://evil.example\r\nOrigin: http://{live.host}\r\n"
        raw.sendall(f"GET /api/models HTTP/1.1\r\nHost: {live.host}\r\n{origins}\r\n".encode())
        assert b" 400 " in raw.recv(65536).split(b"\r\n")[0]


def test_a_preflight_is_not_answered(live):
    answer = live.ask("/api/runs", method="OPTIONS", headers={"Access-Control-Request-Method": "POST"})
    assert answer.status == 415


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 400, "request"),
        (b"{", 400, "request"),
        (b"\xff", 400, "request"),
        (b'{"text": NaN}', 400, "request"),
        (b"[" * 100_000, 400, "request"),
        (b"[1]", 422, "request"),
        (b"{}", 422, "text"),
        ({**RUN, "extra": 1}, 422, "extra"),
        ({**RUN, "text": 3}, 422, "text"),
        ({**RUN, "model": "0"}, 422, "model"),
        ({**RUN, "model": 7}, 422, "model"),
        ({**RUN, "model": True}, 422, "model"),
        ({**RUN, "off": {"encoder.0.self_attn": [0.5]}}, 422, "off.encoder.0.self_attn.0"),
        ({**RUN, "off": {"encoder.9": [0]}}, 422, "silence"),
        ({**RUN, "off": {"encoder.0.self_attn": [9]}}, 422, "silence"),
        ({**RUN, "text": ""}, 422, "text"),
        ({**RUN, "text": " \n"}, 422, "text"),
        ({**RUN, "text": "a\0b"}, 400, "text, character 2"),
        (b'{"text": "\\ud800"}', 400, "text, character 1"),
        ({**RUN, "text": "a" * (1 << 20)}, 413, "text"),
        ({**RUN, "text": "nobody sang " * 100}, 413, None),
        ({**RUN, "target": "x\0"}, 400, "target, character 2"),
        ({**RUN, "language": "de"}, 422, "language"),
        ({**RUN, "image": "AAAA"}, 422, "image"),
        ({"model": 1, "text": "a"}, 422, "image"),
        ({"model": 1, "image": "http://127.0.0.1/cat.png"}, 400, "image"),
        ({"model": 1, "image": base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>").decode()}, 400, "image"),
        ({"model": 1, "image": base64.b64encode(a_png(1, 1)).decode()}, 422, "image"),
        ({"model": 1, "image": base64.b64encode(a_png(24, 24)[:60]).decode()}, 400, "image"),
        ({"model": 1, "image": "AAAA", "target": "x"}, 422, "target"),
        ({"model": 1, "image": "A" * (23 << 20)}, 413, "image"),
    ],
)
def test_a_bad_request_hears_what_where_and_hurts_itself_alone(live, body, status, field):
    began = time.monotonic()
    answer = live.ask("/api/runs", body)
    assert answer.status == status, answer.body
    assert set(answer.json) == {"code", "message", "field"}
    assert "\n" not in answer.json["message"]
    assert "Traceback" not in answer.json["message"]
    if field is not None:
        assert answer.json["field"] == field
    assert time.monotonic() - began < 10
    assert live.ask("/api/runs", RUN).status == 201


def test_a_request_over_the_cap_is_refused_before_it_is_read(live):
    with socket.create_connection(("127.0.0.1", live.port), timeout=20) as raw:
        head = f"POST /api/runs HTTP/1.1\r\nHost: {live.host}\r\nContent-Type: application/json\r\n"
        raw.sendall(f"{head}Content-Length: {1 << 40}\r\n\r\n".encode())
        sent = 0
        try:
            while sent < 64 << 20:
                sent += raw.send(b" " * (1 << 20))
        except OSError:
            pass  # it has closed
        assert sent < 64 << 20 or b" 413 " in raw.recv(65536)
    assert live.ask("/api/models").status == 200


@pytest.mark.slow
def test_a_slow_client_is_not_waited_for(live):
    with socket.create_connection(("127.0.0.1", live.port), timeout=60) as raw:
        head = f"POST /api/runs HTTP/1.1\r\nHost: {live.host}\r\nContent-Type: application/json\r\n"
        raw.sendall(f"{head}Content-Length: 50\r\n\r\n{{".encode())
        assert live.ask("/api/runs", RUN).status == 201
        assert b" 408 " in raw.recv(65536).split(b"\r\n")[0]


TOKEN_SERVER = """
from pathlib import Path
from regard.serving.listening import listen, names, serve
from regard.serving.look import look_app
from regard.serving.runs import Runs
taken = listen("127.0.0.1", 0)
port = taken.getsockname()[1]
app = look_app(Runs([], Path(".")), [], names("127.0.0.1", port, ["box.example"]), "s3cret")
serve(app, taken, lambda: print(f"page: http://127.0.0.1:{port}/", flush=True))
"""


def test_where_a_token_is_wanted_nothing_is_said_without_it():
    live = Live([], [sys.executable, "-c", TOKEN_SERVER])
    try:
        for path in ("/", "/api/models", "/assets/look.js", "/nothing", "/?token=wrong", "/api/models?token=s3cret"):
            answer = live.ask(path)
            assert (answer.status, answer.json["code"]) == (401, "token")
        assert live.ask("/api/models", headers={"Cookie": "regard-token=wrong"}).status == 401
        entered = live.ask("/?token=s3cret")
        assert (entered.status, entered.headers["location"]) == (303, "/")
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        given = {"Cookie": cookie.split(";")[0]}
        assert live.ask("/", headers=given).status == 200
        assert live.ask("/api/models", headers=given).json == []
        assert live.ask("/api/models", headers={**given, "Host": f"box.example:{live.port}"}).status == 200
        assert live.ask("/api/models", headers={**given, "Host": f"evil.example:{live.port}"}).status == 403
    finally:
        live.stop()


def test_messages_are_json_that_a_page_can_show_as_text(live):
    hostile = "<img src=x onerror=alert(1)>"
    answer = live.ask("/api/runs", {**RUN, "off": {hostile: [0]}})
    assert answer.headers["content-type"] == "application/json"
    assert hostile in json.loads(answer.body)["message"]
