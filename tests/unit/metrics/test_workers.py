"""Metrics of a real gunicorn with several workers, read on the address that they share."""
from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.frontend import Frontend, get


@pytest.fixture(scope="module")
def frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    running = Frontend.start(tmp_path_factory.mktemp("home"), workers=2, STRATA_THREDS="8")
    yield running
    running.stop()


def wait_until(true: Callable[[], bool], patience: float = 30.0) -> None:
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def series(frontend: Frontend) -> set[tuple[str, ...]]:
    return {(sample.name, *sample.labels.values()) for sample in frontend.samples()}


def test_every_workers_requests_are_counted(frontend: Frontend) -> None:
    before = frontend.total("strata_requests_total", route="/v1/models")
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda _: get(f"{frontend.url}/v1/models").status_code, range(200)))
    assert codes == [401] * 200
    labels = {"route": "/v1/models", "method": "GET", "status": "401", "code": "invalid_api_key", "model": ""}
    wait_until(lambda: frontend.total("strata_requests_total", **labels) == before + 200)
    assert frontend.total("strata_request_seconds_count", route="/v1/models") == before + 200
    counted = [file for file in (frontend.home / "metrics").glob("counter_*.db") if b"/v1/models" in file.read_bytes()]
    assert len(counted) > 1


@pytest.mark.parametrize(("route", "path"), [
    ("/static/<name>", "/static/app.css"), ("/docs/pictures/<name>.svg", "/docs/pictures/logit-lens.svg"),
    ("/static/<name>", "/static/none.css")])
def test_files_are_counted_to_their_end(frontend: Frontend, route: str, path: str) -> None:
    before = frontend.total("strata_requests_total", route=route)
    whole = get(frontend.url + path)
    head = httpx.head(frontend.url + path)
    again = get(frontend.url + path, **{"If-None-Match": whole.headers.get("ETag", "none")})
    assert (whole.status_code, head.status_code, again.status_code) in {(200, 200, 304), (404, 404, 404)}
    assert len(whole.content) == int(whole.headers["Content-Length"])
    wait_until(lambda: frontend.total("strata_requests_total", route=route) == before + 3)
    wait_until(lambda: frontend.total("strata_requests_active") == 0)


def test_what_callers_make_up_makes_no_series(frontend: Frontend) -> None:
    def ask(number: int) -> None:
        get(f"{frontend.url}/made-up/{number}")
        get(f"{frontend.url}/v1/models/made-up-{number}")
        httpx.request(f"MADE{number}", f"{frontend.url}/v1/models")
        httpx.post(f"{frontend.url}/v1/completions", json={"model": f"made-up-{number}", "prompt": "x"})
        httpx.post(f"{frontend.url}/v1/tokenize", json={"model": f"made-up-{number}", "prompt": "x"})

    ask(0)
    first = frontend.total("strata_requests_total")
    wait_until(lambda: frontend.total("strata_requests_total") == first)
    known = series(frontend)
    for number in range(1, 10):
        ask(number)
    wait_until(lambda: frontend.total("strata_requests_total") == first + 45)
    assert series(frontend) == known
    assert "made-up" not in str(known)
    assert "MADE" not in str(known)


def test_the_public_address_has_no_metrics(frontend: Frontend) -> None:
    for path in ("/metrics", "/metrics/", "//metrics"):
        answer = get(frontend.url + path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    host = f"127.0.0.1:{frontend.metrics_port}"
    assert get(f"{frontend.url}/metrics", Host=host).status_code == 404
    for other in {entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}:
        if not other.startswith("127."):
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((other, frontend.metrics_port), timeout=5)


def test_counts_outlive_workers_and_their_files_do_not(frontend: Frontend) -> None:
    folder = frontend.home / "metrics"
    get(f"{frontend.url}/healthz")
    for _ in range(2):
        before = frontend.total("strata_requests_total", route="/healthz")
        old = frontend.workers()
        booted = frontend.output().count("Booting worker")
        for worker in old:
            worker.kill()
        wait_until(lambda booted=booted: frontend.output().count("Booting worker") == booted + 2)  # type: ignore[misc]
        wait_until(frontend.answers)
        wait_until(lambda old=old: not any(  # type: ignore[misc]
            file for worker in old for file in folder.glob(f"*_{worker.pid}.db")))
        assert frontend.total("strata_requests_total", route="/healthz") >= before
        assert len(list(folder.glob("*.db"))) <= 2 + 3 * 2


def test_readers_see_no_counter_go_down_while_workers_die(frontend: Frontend) -> None:
    seen: list[float] = []
    for victim in frontend.workers():
        for _ in range(10):
            with suppress(httpx.TransportError):  # the worker that was answering died
                get(f"{frontend.url}/healthz")
                seen.append(frontend.total("strata_requests_total", route="/healthz"))
            with suppress(psutil.NoSuchProcess):  # it is gone already
                victim.kill()
    assert len(seen) > 5
    assert seen == sorted(seen)


def test_a_frontend_that_was_killed_starts_again_at_once_and_counts_from_nothing(tmp_path: Path) -> None:
    first = Frontend.start(tmp_path, workers=1)
    get(f"{first.url}/v1/models")
    wait_until(lambda: first.total("strata_requests_total", route="/v1/models") == 1)
    first.process.kill()
    first.process.wait()
    second = Frontend.start(tmp_path, workers=1, STRATA_METRICS_ADDRESS=f"127.0.0.1:{first.metrics_port}")
    second.metrics_port = first.metrics_port
    get(f"{second.url}/v1/models")
    wait_until(lambda: second.total("strata_requests_total", route="/v1/models") > 0)
    assert second.total("strata_requests_total", route="/v1/models") == 1
    second.stop()


def test_a_second_frontend_in_one_home_ends_with_one_line(frontend: Frontend) -> None:
    before = frontend.total("strata_requests_total")
    second = Frontend.launch(frontend.home / "second", workers=1, STRATA_HOME=str(frontend.home))
    assert second.process.wait(60) == 1
    assert "strata: another frontend counts in" in second.output()
    assert "Traceback" not in second.output()
    assert frontend.total("strata_requests_total") >= before


def test_a_metrics_address_in_use_ends_with_one_line(tmp_path: Path, frontend: Frontend) -> None:
    taken = f"127.0.0.1:{frontend.metrics_port}"
    second = Frontend.launch(tmp_path, workers=1, STRATA_METRICS_ADDRESS=taken)
    assert second.process.wait(60) == 1
    assert f"strata: cannot serve metrics on {taken} (Address already in use" in second.output()
    assert "Traceback" not in second.output()


def test_an_unknown_setting_is_a_warning(frontend: Frontend) -> None:
    assert "strata: there is no setting STRATA_THREDS: did you mean STRATA_THREADS?" in frontend.output()


def test_a_wrong_setting_ends_with_one_line(tmp_path: Path) -> None:
    frontend = Frontend.launch(tmp_path, workers=1, STRATA_THREADS="many")
    assert frontend.process.wait(60) == 1
    assert frontend.output() == "strata: STRATA_THREADS must be a whole number from 1 to 10000\n"
