"""Pieces of pages that stand without the service."""

import pytest

from tunewright.api.dashboard.report.fragment import Fragment

PLACES = {"/tasks/ab": "about-ab"}


def piece(inside, **settings):
    page = f"<!doctype html>\n<html><head><title>x</title></head><body><main id='main'>{inside}</main></body></html>"
    return str(Fragment(places=PLACES, **settings).of(page))


@pytest.mark.parametrize(
    ("inside", "left"),
    [
        ("<p>one &lt;b&gt; &amp; <b>two</b></p>", "<p>one &lt;b&gt; &amp; <b>two</b></p>"),
        ('<p title="&quot;&lt;">x</p>', '<p title="&#34;&lt;">x</p>'),
        ("a<br>b", "a<br>b"),
        ('<svg viewBox="0 0 1 1"><path d="M0 0"/></svg>', '<svg viewBox="0 0 1 1"><path d="M0 0"></path></svg>'),
        ('<svg preserveAspectRatio="none"></svg>', '<svg preserveAspectRatio="none"></svg>'),
        ('see <a href="/tasks/ab?target=t&amp;job=1">it</a>', 'see <a href="#about-ab">it</a>'),
        ('see <a class="x" href="/tasks/cd">it</a>', "see it"),
        ('see <a href="https://example.org/">it</a>', "see it"),
        ('see <a href="javascript:alert(1)">it</a>', "see it"),
        ('see <a href="//tasks/ab">it</a>', "see it"),
        ('<a href="#there">down</a><p id="there">', '<a href="#there">down</a>'),
        ("<p>a <button data-post='/v1/x'>Go</button></p>", "<p>a </p>"),
        ("<p class='wide served'>a</p>b", "b"),
        ("<p><button class='scripted-only'>Go</button></p>b", "b"),
        ("<nav><a href='/'>Jobs</a></nav>b", "b"),
        ("<p hidden>a</p>b", "b"),
        ("being made. <a href='?' data-again>Look again</a>", "being made. "),
        ("<div id='x' data-live data-x='y' tabindex='0'>a</div>", '<div id="x" tabindex="0">a</div>'),
        ("<time datetime='2026' title='At noon' data-ago>2 h ago</time>", '<time datetime="2026">At noon</time>'),
        ("<script>alert(1)</script><style>p{}</style><iframe src='/x'></iframe>b", "b"),
        ("<!-- a --> b", "b"),
        ("<details open><summary>a</summary>b</details>", "<details open><summary>a</summary>b</details>"),
    ],
)  # fmt: skip
def test_what_is_left(inside, left):
    assert piece(inside).strip() == left.strip()


def test_names_are_its_own():
    made = piece("<h1 id='a'>x</h1><a href='#a'>up</a><ul aria-labelledby='a b'><h5>y</h5></ul>", prefix="p-", deeper=2)
    assert made == '<h3 id="p-a">x</h3><a href="#p-a">up</a><ul aria-labelledby="p-a p-b"><h6>y</h6></ul>'


def test_a_page_without_a_main():
    with pytest.raises(ValueError, match="no main"):
        Fragment().of("<p>x</p>")
