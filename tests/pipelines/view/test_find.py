"""A state is found by the path of its output, also where the path begins with the name of a pipeline."""

from __future__ import annotations

import pytest

from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.ops.pipelines.find import find_state
from tidemill.ops.pipelines.pipelines import PipelineLine, StageLine


def line(pipeline: str, **outputs: str) -> PipelineLine:
    """A pipeline with stages that make these outputs for each `name`."""
    stages = [
        StageLine(name, [], output, ["name"], [], None, "keep", None, None, None, {}, 0, "")
        for name, output in outputs.items()
    ]
    return PipelineLine(pipeline, "files", True, None, stages, {}, 0, [], None, 0.0)


PAGES = line("pages", page="pages/{name}.html")
SITE = line("site", draft="drafts/{name}.txt", copy="pages/copies/{name}.txt")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("pages/tides.html", ("pages", "page", "tides")),
        ("pages/pages/tides.html", ("pages", "page", "tides")),
        ("pages/page/tides", ("pages", "page", "tides")),
        ("page/tides", ("pages", "page", "tides")),
        ("drafts/tides.txt", ("site", "draft", "tides")),
        ("site/drafts/tides.txt", ("site", "draft", "tides")),
        ("pages/copies/tides.txt", ("site", "copy", "tides")),
    ],
)
def test_a_state_is_found_by_each_form_of_its_id(text: str, meant: tuple[str, str, str]) -> None:
    assert find_state([PAGES, SITE], text) == meant


def test_what_is_no_state_says_what_to_write() -> None:
    with pytest.raises(NotFoundError, match="is not a state of pipeline pages: write the path of an output"):
        find_state([PAGES, SITE], "pages/tides.pdf")
    with pytest.raises(ConfigError, match=r"could be of several pipelines \(site, twin\)"):
        find_state([PAGES, SITE, line("twin", copy="pages/copies/{name}.txt")], "pages/copies/tides.txt")
