"""Sphinx's settings; what the reference says is generated from the packages first (`docs/generate.py`)."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generate  # noqa: E402

import sandbox  # noqa: E402

project, author, release = "apollo-sandbox", "the apollo-sandbox developers", sandbox.__version__
extensions = ["myst_nb"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
nb_execution_mode = "off"  # they are executed and saved by `make notebooks`, and run again by `make test`
html_title = project
html_theme = "pydata_sphinx_theme"
html_theme_options = {"navigation_with_keys": False, "show_toc_level": 2, "footer_start": [], "footer_end": []}
exclude_patterns = ["_build"]
highlight_language = "none"
python_maximum_signature_line_length = 100
# Types of torch, NumPy and Python have no pages here, and annotations name ours by their last part.
nitpicky = True
nitpick_ignore_regex = [("py:class", r".*")]
suppress_warnings = [
    "myst.header",  # notebooks begin at a second level
    "ref.python",  # an annotation "Pairs" may name a block or a data set
]


def setup(app: object) -> None:
    """Generates the pages before Sphinx looks for them."""
    app.connect("config-inited", lambda *_: generate.everything(HERE))  # type: ignore[attr-defined]
