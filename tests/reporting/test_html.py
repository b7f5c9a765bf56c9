"""The page: complete, self-contained, escaped, and sound in a real browser."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from reporting import collect, document, figures, html
from tests.mlperf.log_files import write_shampoo
from tests.reporting.run_folders import write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def write_study(out):
    """Four recipes, ten seeds, one diverged run, one unreadable run, flags, counters, a ladder."""
    rng = np.random.default_rng(0)
    for recipe, speed in (("lars", 1.0), ("nesterov", 0.8), ("shampoo", 1.3), ("sm3", 0.6)):
        for seed in range(10):
            curve = 0.99 - 0.9 * np.exp(-speed * np.arange(1, 9) / 2) + rng.normal(0, 0.003, 8)
            counts = [int(1000 * c) for c in np.clip(curve, 0, 1)]
            diverged = recipe == "sm3" and seed == 3
            record: dict[str, object] = {}
            if recipe == "shampoo":
                record["assumed"] = ["label_smoothing"]
            if diverged:
                counts, record = counts[:2], {"total_steps": 128}
            status = "diverged" if diverged else "done"
            config = {"schedule": {"peak_learning_rate": speed}}
            write_run(out, f"{recipe}:digits", seed, counts, status=status, record=record,
                      config=config)  # fmt: skip
    (out / "lars-digits" / "broken").mkdir()
    (out / "lars-digits" / "broken" / "run.json").write_text("{")
    write_shampoo(out / "published" / "resnet")
    return out


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = write_study(tmp_path_factory.mktemp("study"))
    report, rows = document.build(*collect.collect([out]))
    path = out / "report.html"
    path.write_text(html.render(report, rows), "utf-8")
    return path


def test_the_page_says_everything_and_the_verdict_first(study):
    text = study.read_text()
    order = ["Steps to the target (measure A)", "Proxy data"]
    order += [f"<h2>{title}" for title in ("Runs", "Figures", "Seeds needed", "Cost", "Published",
              "Provenance", "Failed runs")]  # fmt: skip
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    for words in ("assumed: label_smoothing", "diverged: ", "not counted: ", "root_error",
                  "schedule.peak_learning_rate", "jax 0.10.2", "abc1234", "not run"):  # fmt: skip
        assert words in text, words


def test_the_page_loads_nothing(study):
    text = study.read_text()
    assert not re.search(r"<(script|link|img|iframe|object)\b", text)
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)""", text)
    assert not re.search(r"url\((?!#)|@import", text)


def test_names_from_files_are_escaped(tmp_path):
    name = "lars:<script>alert(1)</script>"
    write_run(tmp_path, "x", record={"recipe": name}, config={"recipe": name})
    report, rows = document.build(*collect.collect([tmp_path]))
    page = html.render(report, rows)
    assert "<script" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
@pytest.mark.parametrize("width", [1300, 500])
def test_the_page_fits_its_window_in_a_browser(width, study, tmp_path):
    """A script in a copy of the page measures what a reader sees; wide tables scroll inside."""
    measure = """<script>
      const shown = [...document.querySelectorAll("figure svg")].map(s => s.clientWidth);
      document.body.dataset.figures = shown.filter(w => w > 200).length + "/" + shown.length;
      document.body.dataset.wide =
        document.documentElement.scrollWidth > document.documentElement.clientWidth + 1;
    </script></body>"""
    copy = tmp_path / "page.html"
    copy.write_text(study.read_text().replace("</body>", measure), "utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
             "--disable-background-networking", "--disable-component-update", "--dump-dom",
             f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900"]  # fmt: skip
    command = [str(CHROMIUM), *flags, copy.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    (shown,) = re.findall(r'data-figures="(\d+)/(\d+)"', dom)
    assert shown[0] == shown[1]
    assert int(shown[0]) >= 8
    assert 'data-wide="false"' in dom


def test_a_diverged_run_stays_in_the_curves_as_the_worst(tmp_path):
    for seed, counts in enumerate(((500, 900), (600, 950), (700, 990))):
        write_run(tmp_path, "lars:digits", seed, counts)
    for seed in (3, 4):
        write_run(tmp_path, "lars:digits", seed, (400,), status="diverged",
                  record={"total_steps": 32})  # fmt: skip
    (row,) = document.build(*collect.collect([tmp_path]))[1]
    steps, quartiles = figures.accuracy_quartiles(row)
    assert steps == [16, 32]
    np.testing.assert_allclose(quartiles[:, 0], [0.4, 0.5, 0.6])
    np.testing.assert_allclose(quartiles[:, 1], [0.0, 0.9, 0.95])
